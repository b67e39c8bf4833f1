# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``diff``: the series as one unified diff against upstream."""

import difflib
from collections.abc import Iterator

from tools.series.base import Sources


def unified_diff(composed: dict[str, str], sources: Sources) -> Iterator[str]:
    """Yields the lines of the diff, in the form that ``git apply`` takes.

    Args:
        composed: The merged files, by path.
        sources: The pinned release.
    """
    for path in sorted(composed):
        is_new = path not in sources.paths
        old = "" if is_new else sources.read(path)
        yield f"diff --git a/{path} b/{path}\n"
        if is_new:
            yield "new file mode 100644\n"
        yield from difflib.unified_diff(
            old.splitlines(keepends=True),
            composed[path].splitlines(keepends=True),
            "/dev/null" if is_new else f"a/{path}",
            f"b/{path}",
        )
