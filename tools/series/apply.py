# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``apply``: merges the series into the vLLM installed in this environment."""

from contextlib import suppress

from tools.series.base import Sources
from tools.series.installed import Applied, Installed, digest
from tools.series.problems import Problem, SeriesError
from tools.series.version import VERSION_FILE, is_series_version


def apply(composed: dict[str, str], sources: Sources, installed: Installed) -> int:
    """Makes the installed tree equal to the composed one.

    Files of an earlier ``apply``, or of an installed wheel of the series, that the
    overlay no longer has go back to upstream's. The bytes from before the first
    ``apply`` are kept for ``revert``.

    Args:
        composed: The merged files, by path.
        sources: The pinned release.
        installed: The tree to change.

    Returns:
        The number of files that changed; 0 if the tree was up to date.

    Raises:
        SeriesError: Somebody else changed or built one of the files, or one cannot be
            written; the tree is as it was.
    """
    wanted = _wanted(composed, sources, installed)
    installed.refuse_foreign(sorted(wanted))
    changes = {
        path: data
        for path, data in wanted.items()
        if installed.digest(path) != (None if data is None else digest(data))
    }
    if changes:
        _write(changes, installed)
    return len(changes)


def _wanted(
    composed: dict[str, str], sources: Sources, installed: Installed
) -> dict[str, bytes | None]:
    differing = _differing(sources, installed)
    wanted: dict[str, bytes | None] = {}
    for path in sorted({*composed, *differing, *installed.applied.hashes}):
        if path in composed:
            wanted[path] = composed[path].encode()
        else:
            known = path in sources.paths
            wanted[path] = sources.read_bytes(path) if known else None
    return wanted


def _differing(sources: Sources, installed: Installed) -> list[str]:
    """Files that pip installed and upstream's wheel has not, or not so."""
    differing = [
        path
        for path, value in installed.pip_hashes.items()
        if value != sources.hashes.get(path)
        and path != VERSION_FILE
        and not path.endswith(".so")
    ]
    if is_series_version(installed.version, sources.pin):
        return differing
    message = (
        f"is not upstream's in the installed vLLM {installed.version}, which is no "
        "build of the series; install one, or the release itself"
    )
    if differing:
        raise SeriesError(*(Problem(path, message) for path in sorted(differing)))
    return []


def _write(changes: dict[str, bytes | None], installed: Installed) -> None:
    old = installed.applied
    before = {path: installed.digest(path) for path in changes}
    record = Applied(dict(old.hashes), list(old.added))
    try:
        for path, data in changes.items():
            if installed.is_original(path):
                _keep_original(path, installed, record)
            mark = "" if data is None else digest(data)
            record.hashes[path] = [*old.hashes.get(path, []), mark]
        installed.write_record(record)
        installed.swap(changes)
    except BaseException:
        if all(installed.digest(path) == before[path] for path in changes):
            installed.write_record(old)
        raise
    record.hashes = {path: marks[-1:] for path, marks in record.hashes.items()}
    with suppress(OSError):  # the longer record serves as well
        installed.write_record(record)


def _keep_original(path: str, installed: Installed, record: Applied) -> None:
    """Keeps what pip installed; a reinstalled vLLM makes older copies void."""
    kept = installed.backup(path)
    if installed.digest(path) is None:
        kept.unlink(missing_ok=True)
        record.added = sorted({*record.added, path})
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes((installed.root / path).read_bytes())
    record.added = [other for other in record.added if other != path]
