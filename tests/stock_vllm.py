# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Stock vLLM beside the installed one, to compare with in the same test run.

The stock tree has upstream's Python files, from the pinned wheel, and links to the
installed compiled modules. A function runs on it in a process of its own.
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import TypeVar

from tools.series.base import Sources, load_pin
from tools.series.compose import write_tree

ROOT = Path(__file__).resolve().parents[1]

T = TypeVar("T")

_CALL = """
import pickle, sys
function, arguments = pickle.load(open(sys.argv[1], "rb"))
pickle.dump(function(*arguments), open(sys.argv[2], "wb"))
"""


def write_stock_tree(folder: Path) -> Path:
    """Makes a folder from which ``import vllm`` gives upstream's release.

    Args:
        folder: Where the tree goes; absent or empty.

    Returns:
        The folder, to be put on ``PYTHONPATH``.
    """
    write_tree({}, Sources(load_pin(ROOT)), folder)
    installed = Path(str(distribution("vllm").locate_file("vllm")))
    for path in installed.rglob("*"):
        link = folder / "vllm" / path.relative_to(installed)
        compiled_or_data = path.suffix not in (".py", ".pyc") and path.is_file()
        if compiled_or_data and ".series" not in path.parts:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    return folder


def _environment(tree: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{tree}{os.pathsep}{ROOT}",
        # What a process compiles or finds out about models, the next one reads.
        "PYTHONDONTWRITEBYTECODE": "",
        "VLLM_CACHE_ROOT": str(tree / "cache"),
    }


def run_on_stock(tree: Path, function: Callable[..., T], *arguments: object) -> T:
    """Calls a function in a process where ``vllm`` is upstream's release.

    Args:
        tree: What `write_stock_tree` returned.
        function: A module-level function; it, its arguments and its result are
            pickled.
        *arguments: Its arguments.

    Returns:
        Its result.

    Raises:
        RuntimeError: The function raised; the message ends with its traceback.
    """
    with tempfile.TemporaryDirectory() as scratch:
        call, result = Path(scratch) / "call", Path(scratch) / "result"
        call.write_bytes(pickle.dumps((function, arguments)))
        done = subprocess.run(
            [sys.executable, "-c", _CALL, str(call), str(result)],
            env={**os.environ, **_environment(tree)},
            cwd=scratch,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{function.__name__} failed on stock:\n{done.stderr}")
        return pickle.loads(result.read_bytes())
