# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The pinned upstream release: its wheels, verified, and its sources."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.series.problems import Problem, SeriesError

PACKAGE = "vllm"
PIN = "series.toml"
LOCATION = "VLLM_PRECOMPILED_WHEEL_LOCATION"


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel.

    Attributes:
        requirement: What pip is asked for.
        file: The wheel's file name.
        sha256: Hexadecimal SHA-256 of the file.
    """

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Pin:
    """The release that the series applies to, as ``series.toml`` says.

    Attributes:
        version: Upstream's version.
        label: Local version label of the wheel that is built.
        base: Upstream's wheel.
        cpu: The wheel that has the CPU flavour's compiled modules.
    """

    version: str
    label: str
    base: Wheel
    cpu: Wheel


def load_pin(root: Path) -> Pin:
    """Reads ``series.toml``.

    Raises:
        SeriesError: The file is absent or lacks a field.
    """
    try:
        table = tomllib.loads((root / PIN).read_text(encoding="utf-8"))
        wheels = {name: Wheel(**fields) for name, fields in table["wheels"].items()}
        pin = Pin(table["version"], table["label"], wheels["base"], wheels["cpu"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"cannot be read ({error!r}); expected version, label and two wheels"
        raise SeriesError(Problem(PIN, message)) from error
    if not pin.base.file.startswith(f"{PACKAGE}-{pin.version}-"):
        message = f"has version {pin.version}, and {pin.base.file} as its base wheel"
        raise SeriesError(Problem(PIN, f"{message}; correct one of the two"))
    return pin


def find_wheel(wheel: Wheel) -> Path:
    """A verified local copy of a pinned wheel, downloaded if there is none.

    Looked for at ``VLLM_PRECOMPILED_WHEEL_LOCATION`` (that file, or in its folder, or
    in that folder) and in the cache, ``$XDG_CACHE_HOME/vllm-series``.

    Raises:
        SeriesError: The download failed, or the file has another hash.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache /= "vllm-series"
    given = os.environ.get(LOCATION)
    candidates = [_given(Path(given), wheel)] if given else []
    for path in (*candidates, cache / wheel.file):
        if path.is_file():
            verify(path, wheel)
            return path
    _download(wheel, cache)
    verify(cache / wheel.file, wheel)
    return cache / wheel.file


def _given(location: Path, wheel: Wheel) -> Path:
    """Where a wheel would be, by the user's word: another version's is refused."""
    if location.is_dir():
        return location / wheel.file
    if not location.is_file() or location.suffix != ".whl":
        message = f"{LOCATION} is {str(location)!r}; expected a wheel or its folder"
        raise SeriesError(Problem(PIN, message))
    name, other = (file.partition("-")[0] for file in (location.name, wheel.file))
    return location if name == other else location.with_name(wheel.file)


def verify(path: Path, wheel: Wheel) -> None:
    """Compares a file's hash with the pinned one.

    Raises:
        SeriesError: They differ.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        message = (
            f"{path} has SHA-256 {found}, expected {wheel.sha256} for "
            f"{wheel.requirement}; delete it, or point {LOCATION} at the right one"
        )
        raise SeriesError(Problem(PIN, message))


def _download(wheel: Wheel, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, stdout=sys.__stderr__, check=False)
    if done.returncode != 0 or not (folder / wheel.file).is_file():
        message = (
            f"pip could not download {wheel.file}; put it into {folder}, or set "
            f"{LOCATION} to it"
        )
        raise SeriesError(Problem(PIN, message))


def recorded_hashes(record: str) -> dict[str, str]:
    """SHA-256 of each file of the package, from a ``RECORD``."""
    hashes = {}
    for path, value, *_ in csv.reader(io.StringIO(record)):
        name, _, encoded = value.partition("=")
        if path.startswith(f"{PACKAGE}/") and name == "sha256":
            padded = encoded + "=" * (-len(encoded) % 4)
            hashes[path] = base64.urlsafe_b64decode(padded).hex()
    return hashes


class Sources:
    """The files of the pinned release, read from its verified wheel.

    Attributes:
        pin: The release.
        paths: Every file of the wheel.
        hashes: SHA-256 of each file of the package, by path.
    """

    def __init__(self, pin: Pin) -> None:
        self.pin = pin
        self._archive = zipfile.ZipFile(find_wheel(pin.base))
        self.paths = frozenset(self._archive.namelist())
        record = next(path for path in self.paths if path.endswith("/RECORD"))
        self.hashes = recorded_hashes(self.read(record))

    def read(self, path: str) -> str:
        """Text of one file, by its path in the wheel."""
        return self._archive.read(path).decode()

    def read_bytes(self, path: str) -> bytes:
        """Bytes of one file, by its path in the wheel."""
        return self._archive.read(path)
