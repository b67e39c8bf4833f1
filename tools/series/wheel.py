# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The wheel: upstream's, with the series merged in, repacked under its own version."""

import tempfile
import zipfile
from pathlib import Path

from wheel.wheelfile import WheelFile

from tools.series.base import Pin, Sources, find_wheel
from tools.series.overlay import compose, load_overlay
from tools.series.version import CPU, VERSION_FILE, version_source, wheel_version

_TAG = "cp38-abi3-linux_x86_64"


def build_wheel(root: Path, folder: Path, device: str) -> Path:
    """Builds the wheel of one flavour.

    Args:
        root: The repository's root.
        folder: Where the wheel goes.
        device: The flavour: ``cpu``, or anything else for the default one.

    Returns:
        Path of the wheel.

    Raises:
        SeriesError: The series does not apply, or a pinned wheel cannot be had.
    """
    overlay = load_overlay(root)
    pin = overlay.pin
    sources = Sources(pin)
    composed = compose(overlay, sources)
    version = wheel_version(pin, device)
    composed[VERSION_FILE] = version_source(sources.read(VERSION_FILE), pin, version)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        _extract(find_wheel(pin.base), tree)
        if device == CPU:
            _extract(find_wheel(pin.cpu), tree, prefix="vllm/_C")
        for path, text in composed.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(text.encode())
        write_metadata(tree, pin, version)
        target = folder / f"vllm-{version}-{_TAG}.whl"
        with WheelFile(str(target), "w") as wheel:
            wheel.write_files(str(tree))
    return target


def write_metadata(tree: Path, pin: Pin, version: str) -> Path:
    """Gives an unpacked wheel's metadata another version.

    If the tree holds none, upstream's is taken.

    Args:
        tree: Folder of the unpacked wheel.
        pin: The release that the series applies to.
        version: The new version.

    Returns:
        The ``.dist-info`` folder.
    """
    old = tree / f"vllm-{pin.version}.dist-info"
    if not old.exists():
        _extract(find_wheel(pin.base), tree, prefix=f"{old.name}/")
    new = old.rename(tree / f"vllm-{version}.dist-info")
    (new / "RECORD").unlink()
    metadata = new / "METADATA"
    text, field = metadata.read_bytes().decode(), "\nVersion: "
    assert f"{field}{pin.version}\n" in text, metadata
    text = text.replace(f"{field}{pin.version}\n", f"{field}{version}\n", 1)
    metadata.write_bytes(text.encode())
    return new


def _extract(wheel: Path, folder: Path, prefix: str = "") -> None:
    """Unpacks the members of a wheel whose path starts with a prefix."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(prefix) and not member.is_dir():
                path = archive.extract(member, folder)
                Path(path).chmod(member.external_attr >> 16 & 0o777 or 0o644)
