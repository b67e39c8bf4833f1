# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Builds the wheel: the pinned vLLM release with the series merged in.

``pip install .`` gives the default flavour, ``VLLM_TARGET_DEVICE=cpu pip install .``
the one that runs on a machine without a GPU. Nothing is compiled.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Command, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.series.base import load_pin  # noqa: E402
from tools.series.version import wheel_version  # noqa: E402
from tools.series.wheel import build_wheel, write_metadata  # noqa: E402

DEVICE = os.environ.get("VLLM_TARGET_DEVICE", "")
PIN = load_pin(ROOT)
VERSION = wheel_version(PIN, DEVICE)


class _Command(Command):
    user_options: list[tuple[str, str | None, str]] = []

    def initialize_options(self) -> None:
        for option, _, _ in self.user_options:
            setattr(self, option.rstrip("=").replace("-", "_"), None)

    def finalize_options(self) -> None:
        pass


class EggInfo(_Command):
    """Nothing: an egg-info folder here would hide the installed vLLM's metadata."""

    user_options = [("egg-base=", None, "ignored")]

    def run(self) -> None:
        pass


class DistInfo(_Command):
    """Writes the metadata that pip asks for ahead of the wheel."""

    user_options = [
        ("output-dir=", None, "where the .dist-info folder goes"),
        ("keep-egg-info", None, "ignored"),
    ]

    def run(self) -> None:
        write_metadata(Path(self.output_dir), PIN, VERSION)


class BdistWheel(_Command):
    """Writes the wheel."""

    user_options = [
        ("dist-dir=", None, "where the wheel goes"),
        ("dist-info-dir=", None, "ignored"),
    ]

    def run(self) -> None:
        folder = Path(self.dist_dir or ROOT / "dist")
        folder.mkdir(parents=True, exist_ok=True)
        build_wheel(ROOT, folder, DEVICE)


class EditableWheel(_Command):
    """Refuses: an overlay is not a package that can be imported from here."""

    user_options = [
        ("dist-dir=", None, "ignored"),
        ("dist-info-dir=", None, "ignored"),
    ]

    def run(self) -> None:
        sys.exit(
            "the series cannot be installed as editable: run `pip install .`, then "
            "`python -m tools.series apply` after each change of the overlay"
        )


if __name__ == "__main__":
    shutil.rmtree(ROOT / "vllm.egg-info", ignore_errors=True)
    setup(
        name="vllm",
        version=VERSION,
        packages=[],
        cmdclass={
            "egg_info": EggInfo,
            "dist_info": DistInfo,
            "bdist_wheel": BdistWheel,
            "editable_wheel": EditableWheel,
        },
    )
