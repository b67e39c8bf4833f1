# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``export``: the series as commits on a git checkout of the release."""

import os
import subprocess
import textwrap
from pathlib import Path

from tools.series.base import Sources
from tools.series.catalogue import Entry
from tools.series.overlay import Overlay
from tools.series.problems import Problem, SeriesError

_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def export(
    overlay: Overlay, composed: dict[str, str], sources: Sources, checkout: Path
) -> list[str]:
    """Commits the series, one commit a catalogue entry, in the catalogue's order.

    Args:
        overlay: The series.
        composed: The merged files, by path.
        sources: The pinned release.
        checkout: A clean git work tree of the release.

    Returns:
        Titles of the commits made.

    Raises:
        SeriesError: The folder is not such a work tree; nothing was written.
    """
    problems = _problems(composed, sources, checkout)
    if problems:
        raise SeriesError(*problems)
    start = _git(checkout, "rev-parse", "HEAD").strip()
    try:
        for entry in overlay.entries:
            _commit(entry, composed, checkout)
    except subprocess.CalledProcessError as error:
        _git(checkout, "reset", "--quiet", "--hard", start)
        message = f"refused a commit, and none was kept: {error.stderr.strip()}"
        raise SeriesError(Problem(str(checkout), message)) from error
    return [entry.title for entry in overlay.entries]


def _commit(entry: Entry, composed: dict[str, str], checkout: Path) -> None:
    for path in entry.files:
        target = checkout / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(composed[path].encode())
    _git(checkout, "add", "--force", "--", *entry.files)
    _git(checkout, "commit", "--quiet", "--signoff", "--message", _message(entry))


def _problems(
    composed: dict[str, str], sources: Sources, checkout: Path
) -> list[Problem]:
    try:
        top = _git(checkout, "rev-parse", "--show-toplevel").strip()
        changes = _git(checkout, "status", "--porcelain").strip()
    except (OSError, subprocess.CalledProcessError):
        return [Problem(str(checkout), "is not a git checkout")]
    if Path(top).resolve() != checkout.resolve():
        return [Problem(str(checkout), f"is not the top of its checkout, {top}")]
    if changes:
        return [Problem(str(checkout), "has uncommitted changes; commit or stash them")]
    return [
        Problem(path, f"in {checkout} is not the pinned release's; check out that tag")
        for path in sorted(composed)
        if _bytes(checkout / path)
        != (sources.read_bytes(path) if path in sources.paths else None)
    ]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _message(entry: Entry) -> str:
    body = "\n\n".join(
        textwrap.fill(
            entry.fields[name], 72, break_long_words=False, break_on_hyphens=False
        )
        for name in ("Problem", "Change")
    )
    return f"{entry.title}\n\n{body}"


def _git(checkout: Path, *arguments: str) -> str:
    """Runs git on a checkout, even where a hook has named another repository."""
    command = ["git", "-C", str(checkout), *arguments]
    surroundings = {
        name: value for name, value in os.environ.items() if name not in _REPOSITORY
    }
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=surroundings
    ).stdout
