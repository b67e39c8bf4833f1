# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Runs mypy on the repository's own files, and on the overlay as composed.

A delta is not a module of its own: its types can only be checked where it is merged
with upstream's file.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / "tree"
OWN = ("setup.py", "tools", "tests", "examples", "benchmarks")


def main() -> int:
    """Runs mypy twice; the exit status is 1 if either run found an error."""
    own = [name for name in OWN if (ROOT / name).exists()]
    shutil.rmtree(TREE, ignore_errors=True)
    _python("-m", "tools.series", "compose", str(TREE), cwd=ROOT)
    overlay = sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "vllm").rglob("*.py")
    )
    config = str(ROOT / "pyproject.toml")
    failed = _python("-m", "mypy", *own, cwd=ROOT)
    failed |= _python("-m", "mypy", "--config-file", config, *overlay, cwd=TREE)
    return 1 if failed else 0


def _python(*arguments: str, cwd: Path) -> int:
    return subprocess.run([sys.executable, *arguments], cwd=cwd).returncode


if __name__ == "__main__":
    sys.exit(main())
