# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Runs mypy on the repository's own files, and on the new modules of the overlay.

New modules are checked in the composed tree, where what they import from vLLM is.
Deltas are not checked: upstream's files do not pass mypy as it runs here, since
attributes of a `torch.nn.Module` have no types.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tools.series.catalogue import load_catalogue

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "tree"
OWN = ("setup.py", "tools", "tests", "examples", "benchmarks")


def main() -> int:
    """Runs mypy twice; the exit status is 1 if either run found an error."""
    own = [name for name in OWN if (ROOT / name).exists()]
    shutil.rmtree(TREE, ignore_errors=True)
    _python("-m", "tools.series", "compose", str(TREE), cwd=ROOT)
    entries, _ = load_catalogue(ROOT)
    new = [path for entry in entries for path in entry.adds]
    config = str(ROOT / "pyproject.toml")
    failed = _python("-m", "mypy", *own, cwd=ROOT)
    failed |= _python("-m", "mypy", "--config-file", config, *new, cwd=TREE)
    return 1 if failed else 0


def _python(*arguments: str, cwd: Path) -> int:
    return subprocess.run([sys.executable, *arguments], cwd=cwd).returncode


if __name__ == "__main__":
    sys.exit(main())
