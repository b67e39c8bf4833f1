# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The version of the wheel that the series is built into."""

import ast

from tools.series.base import Pin

VERSION_FILE = "vllm/_version.py"
CPU = "cpu"


def wheel_version(pin: Pin, device: str) -> str:
    """Version of the wheel, as in ``0.33.0+reload.1`` or ``0.33.0+reload.1.cpu``.

    vLLM chooses its CPU platform by the word ``cpu`` in it.

    Args:
        pin: The release that the series applies to.
        device: The flavour: ``cpu``, or anything else for the default one.
    """
    suffix = f".{CPU}" if device == CPU else ""
    return f"{pin.version}+{pin.label}{suffix}"


def is_series_version(version: str, pin: Pin) -> bool:
    """Whether a version is that of a wheel of the series, of this or an older state."""
    release, _, label = version.partition("+")
    word = pin.label.partition(".")[0]
    return release == pin.version and label.partition(".")[0] == word


def version_source(upstream: str, pin: Pin, version: str) -> str:
    """Upstream's generated version file, with the wheel's version in it.

    Args:
        upstream: Source of upstream's file.
        pin: The release that the series applies to.
        version: The wheel's version.
    """
    release, _, label = version.partition("+")
    numbers = tuple(int(part) for part in release.split("."))
    old = [repr(pin.version), repr(numbers)]
    new = [repr(version), repr((*numbers, label))]
    for before, after in zip(old, new, strict=True):
        assert upstream.count(before) == 1, (before, upstream)
        upstream = upstream.replace(before, after)
    ast.parse(upstream)
    return upstream
