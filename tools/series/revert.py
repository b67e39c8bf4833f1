# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``revert``: gives the installed vLLM the bytes it had before ``apply``."""

from tools.series.installed import Applied, Installed
from tools.series.problems import Problem, SeriesError


def revert(installed: Installed) -> int:
    """Undoes every ``apply`` since vLLM was installed.

    Args:
        installed: The tree to change.

    Returns:
        The number of files that changed; 0 if nothing was applied.

    Raises:
        SeriesError: Somebody else changed one of the files; nothing was written.
    """
    applied = installed.applied
    installed.refuse_foreign(sorted(applied.hashes))
    changed = [path for path in applied.hashes if not installed.is_original(path)]
    lost = [
        Problem(path, "cannot be restored, its backup is gone; reinstall vLLM")
        for path in changed
        if path not in applied.added and not installed.backup(path).is_file()
    ]
    if lost:
        raise SeriesError(*lost)
    installed.swap(
        {
            path: None if path in applied.added else installed.backup(path).read_bytes()
            for path in changed
        }
    )
    installed.prune(applied.added)
    installed.write_record(Applied())
    return len(changed)
