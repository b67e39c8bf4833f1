# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The vLLM that is installed in this environment, and what was applied to it."""

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tools.series.base import Pin, recorded_hashes
from tools.series.overlay import PACKAGE
from tools.series.problems import Problem, SeriesError

_STATE = f"{PACKAGE}/.series"


@dataclass
class Applied:
    """The record of what ``apply`` did, kept inside the installed tree.

    Attributes:
        hashes: For each file, the SHA-256 that ``apply`` gave it. While files are
            being written it holds those from before as well.
        added: Those of the files that did not exist before the first ``apply``.
    """

    hashes: dict[str, list[str]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)


class Installed:
    """An installed vLLM of the pinned version.

    Raises:
        SeriesError: vLLM is not installed, or is of another version.
    """

    def __init__(self, pin: Pin) -> None:
        try:
            found = distribution(PACKAGE)
        except PackageNotFoundError:
            message = f"is not installed here; expected {pin.version}: pip install ."
            raise SeriesError(Problem(PACKAGE, message)) from None
        if found.version.partition("+")[0] != pin.version:
            message = (
                f"version {found.version} is installed, and the series is for "
                f"{pin.version}; use an environment with that version"
            )
            raise SeriesError(Problem(PACKAGE, message))
        self.root = Path(str(found.locate_file("")))
        self.pip_hashes = recorded_hashes(found.read_text("RECORD") or "")
        state = self.root / _STATE / "applied.json"
        stored = json.loads(state.read_text()) if state.is_file() else {}
        self.applied = Applied(**stored)

    def backup(self, path: str) -> Path:
        """Where a file's bytes from before the first ``apply`` are kept."""
        return self.root / _STATE / "original" / path

    def digest(self, path: str) -> str | None:
        """SHA-256 of an installed file, or None if there is no such file."""
        file = self.root / path
        return digest(file.read_bytes()) if file.is_file() else None

    def is_original(self, path: str) -> bool:
        """Whether a file is as pip installed it: there with those bytes, or absent."""
        return self.digest(path) == self.pip_hashes.get(path)

    def refuse_foreign(self, paths: list[str]) -> None:
        """Checks that only pip and ``apply`` have written the files.

        Raises:
            SeriesError: Somebody else changed some of them; names them all.
        """
        message = (
            "was changed in the installed vLLM by something else than this tool; save "
            "the change, then reinstall vLLM"
        )
        problems = [
            Problem(path, message)
            for path in paths
            if not self.is_original(path)
            and self.digest(path) not in self.applied.hashes.get(path, [])
        ]
        if problems:
            raise SeriesError(*problems)

    def write_record(self, applied: Applied) -> None:
        """Replaces the record; an empty one removes all state from the tree."""
        self.applied = applied
        if not applied.hashes:
            shutil.rmtree(self.root / _STATE, ignore_errors=True)
            return
        _replace(
            self.root / _STATE / "applied.json", json.dumps(asdict(applied)).encode()
        )

    def swap(self, contents: dict[str, bytes | None]) -> None:
        """Gives files new contents, all of them or, after an error, none.

        Args:
            contents: New bytes by path; None removes the file.
        """
        before = {
            path: (self.root / path).read_bytes() if self.digest(path) else None
            for path in contents
        }
        try:
            self._put(contents)
        except BaseException:
            self._put(before)
            raise

    def _put(self, contents: dict[str, bytes | None]) -> None:
        for path, data in contents.items():
            file = self.root / path
            if data is not None:
                _replace(file, data)
            else:
                file.unlink(missing_ok=True)
                _remove_empty(file.parent)
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def digest(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def _replace(file: Path, data: bytes) -> None:
    """Writes a file such that nobody sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.series")
    temporary.write_bytes(data)
    os.replace(temporary, file)


def _remove_empty(folder: Path) -> None:
    """Removes a folder that holds nothing but a byte-code cache."""
    if all(child.name == "__pycache__" for child in folder.iterdir()):
        shutil.rmtree(folder)
