# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The vLLM that is installed in this environment, and what was applied to it."""

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tools.series.base import PACKAGE, Pin, recorded_hashes
from tools.series.problems import Problem, SeriesError

_STATE = f"{PACKAGE}/.series"
Contents = Mapping[str, bytes | None]
"""Bytes by path; None for a file that is not there."""


@dataclass
class Applied:
    """The record of what ``apply`` did, kept inside the installed tree.

    Attributes:
        hashes: For each file, the SHA-256 that ``apply`` gave it, or an empty string
            if it took the file away. While files are being written it holds those
            from before as well.
        added: Those of the files that did not exist before the first ``apply``.
    """

    hashes: dict[str, list[str]] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)


class Installed:
    """An installed vLLM of the pinned version.

    Attributes:
        version: Its version, with the local label.
        root: The folder that holds the package.
        pip_hashes: SHA-256 of each file of the package as pip installed it, by path.
        applied: The record of what was applied.

    Raises:
        SeriesError: vLLM is not installed, is of another version, or is an editable
            install.
    """

    def __init__(self, pin: Pin) -> None:
        try:
            found = distribution(PACKAGE)
        except PackageNotFoundError:
            raise _refusal(f"is not installed here; expected {pin.version}") from None
        self.version = found.version
        if self.version.partition("+")[0] != pin.version:
            raise _refusal(
                f"version {self.version} is installed, and the series is for "
                f"{pin.version}; use an environment with that version"
            )
        self.root = Path(str(found.locate_file("")))
        self.pip_hashes = recorded_hashes(found.read_text("RECORD") or "")
        if f"{PACKAGE}/__init__.py" not in self.pip_hashes:
            raise _refusal(f"at {self.root} is no install of a wheel; make it one")
        self.applied = self._read_record()

    def _read_record(self) -> Applied:
        state = self.root / _STATE / "applied.json"
        try:
            return Applied(**json.loads(state.read_bytes()))
        except FileNotFoundError:
            return Applied()
        except (ValueError, TypeError):
            message = "is damaged; delete its folder and reinstall vLLM"
            raise SeriesError(Problem(str(state), message)) from None

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
            and (self.digest(path) or "") not in self.applied.hashes.get(path, [])
        ]
        if problems:
            raise SeriesError(*problems)

    def write_record(self, applied: Applied) -> None:
        """Replaces the record; an empty one removes all state from the tree."""
        self.applied = applied
        if not applied.hashes:
            shutil.rmtree(self.root / _STATE, ignore_errors=True)
            return
        state = self.root / _STATE / "applied.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        staged = state.with_suffix(".new")
        try:
            staged.write_text(json.dumps(asdict(applied)))
            os.replace(staged, state)
        finally:
            staged.unlink(missing_ok=True)

    def swap(self, contents: Contents) -> None:
        """Gives files new contents, all of them or, after an error, none.

        Args:
            contents: New bytes by path; None removes the file.

        Raises:
            SeriesError: A file cannot be written.
        """
        before = {path: self._read(path) for path in contents}
        try:
            self._put(contents)
        except BaseException as error:
            with suppress(OSError):
                self._put({path: before[path] for path in self._changed(before)})
            if not isinstance(error, OSError):
                raise
            left = "; run revert" if self._changed(before) else "; nothing was changed"
            raise _refusal(f"cannot be written: {error}{left}") from error
        finally:
            self.prune(contents)

    def prune(self, paths: Iterable[str]) -> None:
        """Removes folders of these files that hold at most a byte-code cache."""
        for path in paths:
            folder = (self.root / path).parent
            while folder != self.root / PACKAGE:
                if folder.is_dir():
                    if any(child.name != "__pycache__" for child in folder.iterdir()):
                        break
                    shutil.rmtree(folder)
                folder = folder.parent

    def _changed(self, before: Contents) -> list[str]:
        return [path for path in before if self._read(path) != before[path]]

    def _read(self, path: str) -> bytes | None:
        file = self.root / path
        return file.read_bytes() if file.is_file() else None

    def _put(self, contents: Contents) -> None:
        """Writes everything aside first, so that a full disk changes nothing."""
        staging = self.root / _STATE / "staged"
        staging.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(contents.values()):
            if data is not None:
                (staging / str(number)).write_bytes(data)
        for number, (path, data) in enumerate(contents.items()):
            file = self.root / path
            if data is None:
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    shutil.copymode(file, staging / str(number))
                os.replace(staging / str(number), file)
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        shutil.rmtree(staging)


def digest(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def _refusal(message: str) -> SeriesError:
    return SeriesError(Problem(PACKAGE, message))
