# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Builds the wheel: the pinned vLLM release with the series merged in.

``pip install .`` gives the default flavour, ``VLLM_TARGET_DEVICE=cpu pip install .``
the one for a machine without a GPU. Nothing is compiled. This module is the build
backend that ``pyproject.toml`` names; its functions are the hooks of PEP 517.
"""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.series.base import LOCATION, load_pin  # noqa: E402
from tools.series.problems import SeriesError  # noqa: E402
from tools.series.version import wheel_version  # noqa: E402
from tools.series.wheel import build_wheel as build  # noqa: E402
from tools.series.wheel import write_metadata  # noqa: E402

DEVICE = os.environ.get("VLLM_TARGET_DEVICE", "")


def get_requires_for_build_wheel(
    config_settings: dict[str, Any] | None = None,
) -> list[str]:
    """Asks for pip, which an isolated build lacks, where wheels may be downloaded."""
    return [] if os.environ.get(LOCATION) else ["pip"]


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    """Writes the metadata that pip asks for ahead of the wheel."""
    try:
        pin = load_pin(ROOT)
        version = wheel_version(pin, DEVICE)
        return write_metadata(Path(metadata_directory), pin, version).name
    except SeriesError as error:
        sys.exit(str(error))


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Writes the wheel, and returns its file name."""
    try:
        return build(ROOT, Path(wheel_directory), DEVICE).name
    except SeriesError as error:
        sys.exit(str(error))


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Refuses: an overlay is not a package that can be imported from here."""
    sys.exit(
        "the series cannot be installed as editable: run `pip install .`, then "
        "`python -m tools.series apply` after each change of the overlay"
    )


if __name__ == "__main__":
    sys.exit("use pip: `pip install .` or `VLLM_TARGET_DEVICE=cpu pip install .`")
