# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Upstream's ruff settings, applied to merged files.

With these settings upstream's own files are a fixed point, so that after formatting a
merged file differs from upstream's only by what its delta says.
"""

import json
import subprocess
from pathlib import Path

from ruff.__main__ import find_ruff_bin

from tools.series.problems import Problem

_CONFIG = Path(__file__).with_name("upstream_ruff.toml")


def tidy(texts: dict[str, str], folder: Path) -> dict[str, str]:
    """Sorts imports, drops those no longer used, and formats.

    Args:
        texts: Python sources by path.
        folder: An empty folder to work in.
    """
    if not texts:
        return {}
    _write(texts, folder)
    _ruff("check", "--fix-only", "--quiet", "--select", "I,F401", folder=folder)
    _ruff("format", "--quiet", folder=folder)
    return {path: (folder / path).read_bytes().decode() for path in texts}


def lint(texts: dict[str, str], folder: Path) -> list[Problem]:
    """Upstream's lint rules on merged files; one problem a violation."""
    if not texts:
        return []
    _write(texts, folder)
    found = json.loads(_ruff("check", "--output-format", "json", folder=folder))
    return [
        Problem(
            Path(item["filename"]).relative_to(folder.resolve()).as_posix(),
            f"line {item['location']['row']} of the merged file: "
            f"{item['code']} {item['message']}",
        )
        for item in found
    ]


def _write(texts: dict[str, str], folder: Path) -> None:
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def _ruff(*arguments: str, folder: Path) -> str:
    command = [find_ruff_bin(), *arguments, "--no-cache"]
    command += ["--config", str(_CONFIG), str(folder.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1 or (done.returncode == 1 and arguments[0] == "format"):
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout
