# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``diff``: the series as one unified diff against upstream."""

import difflib
import io
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.series.base import Sources
from tools.series.problems import Problem, SeriesError


def selected(composed: dict[str, str], paths: list[str]) -> dict[str, str]:
    """The merged files at or below some paths; all of them if no path is given.

    Args:
        composed: The merged files, by path.
        paths: Files or folders, relative to the repository's root.

    Raises:
        SeriesError: A path names no file of the series.
    """
    chosen: dict[str, str] = {}
    problems = []
    for path in map(PurePosixPath, paths):
        below = {
            file: text
            for file, text in composed.items()
            if PurePosixPath(file).is_relative_to(path)
        }
        if not below:
            message = "is no file or folder of the series; expected one under vllm/"
            problems.append(Problem(str(path), message))
        chosen |= below
    if problems:
        raise SeriesError(*problems)
    return chosen if paths else composed


def unified_diff(composed: dict[str, str], sources: Sources) -> Iterator[str]:
    """Yields the lines of the diff, in the form that ``git apply`` takes.

    Args:
        composed: The merged files, by path.
        sources: The pinned release.
    """
    for path in sorted(composed):
        is_new = path not in sources.paths
        old = "" if is_new else sources.read(path)
        if not is_new and old == composed[path]:
            continue
        yield f"diff --git a/{path} b/{path}\n"
        if is_new:
            yield "new file mode 100644\n"
        yield from map(
            _terminated,
            difflib.unified_diff(
                _lines(old),
                _lines(composed[path]),
                "/dev/null" if is_new else f"a/{path}",
                f"b/{path}",
            ),
        )


def _lines(text: str) -> list[str]:
    """Lines as git sees them: only a line feed ends one."""
    return io.StringIO(text, newline="\n").readlines()


def _terminated(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
