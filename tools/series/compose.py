# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``compose``: writes the whole merged tree."""

from pathlib import Path

from tools.series.base import PACKAGE, Sources
from tools.series.problems import Problem, SeriesError


def write_tree(composed: dict[str, str], sources: Sources, folder: Path) -> int:
    """Writes upstream's Python files, with the merged ones in their places.

    Args:
        composed: The merged files, by path.
        sources: The pinned release.
        folder: Where the tree goes; absent or empty.

    Returns:
        The number of files written.

    Raises:
        SeriesError: The folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = "exists and is not an empty folder; give another, or empty it"
        raise SeriesError(Problem(str(folder), message))
    upstream = [
        path
        for path in sources.paths
        if path.startswith(f"{PACKAGE}/") and path.endswith(".py")
    ]
    for path in {*upstream, *composed}:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in composed:
            target.write_bytes(composed[path].encode())
        else:
            target.write_bytes(sources.read_bytes(path))
    return len({*upstream, *composed})
