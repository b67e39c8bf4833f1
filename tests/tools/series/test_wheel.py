# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The wheel of the series, built from small wheels."""

import importlib.metadata
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from wheel.wheelfile import WheelFile

from tests.tools.series.fake_series import COMPOSED, CPU, UPSTREAM, FakeSeries
from tools.series.problems import SeriesError
from tools.series.wheel import build_wheel

DEFAULT = "1.2.3+reload.1"


def _contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.mark.parametrize(
    ("device", "version", "compiled"),
    [("", DEFAULT, {}), ("cuda", DEFAULT, {}), ("cpu", f"{DEFAULT}.cpu", CPU)],
)
def test_the_wheel_is_upstream_s_with_the_series_in_it(
    series: FakeSeries,
    tmp_path: Path,
    device: str,
    version: str,
    compiled: dict[str, str],
):
    wheel = build_wheel(series.root, tmp_path, device)

    contents = _contents(wheel)
    expected = {**UPSTREAM, **COMPOSED}
    expected |= {path: text for path, text in compiled.items() if "/_C" in path}
    number = version.removeprefix("1.2.3+")
    expected["vllm/_version.py"] = (
        f"__version__ = version = '{version}'\n"
        f"__version_tuple__ = version_tuple = (1, 2, 3, '{number}')\n"
    )
    assert wheel.name == f"vllm-{version}-cp38-abi3-linux_x86_64.whl"
    assert {p: t for p, t in contents.items() if p.startswith("vllm/")} == expected


def test_the_metadata_is_upstream_s_but_for_the_version(
    series: FakeSeries, tmp_path: Path
):
    wheel = build_wheel(series.root, tmp_path, "")

    contents = _contents(wheel)
    metadata = Parser().parsestr(contents[f"vllm-{DEFAULT}.dist-info/METADATA"])
    assert metadata["Version"] == DEFAULT
    assert metadata["Name"] == "vllm"
    assert metadata.get_payload() == "Text.\n"
    tags = Parser().parsestr(contents[f"vllm-{DEFAULT}.dist-info/WHEEL"])
    assert wheel.stem.endswith(f"-{tags['Tag']}")


def test_every_file_is_in_the_record_with_its_hash(series: FakeSeries, tmp_path: Path):
    wheel = build_wheel(series.root, tmp_path, "cpu")

    with WheelFile(str(wheel)) as archive:  # reading a member checks its hash
        for name in archive.namelist():
            archive.read(name)
    series.install(wheel)
    files = importlib.metadata.files("vllm") or []
    assert {str(file) for file in files} == set(_contents(wheel))


def test_a_series_that_does_not_apply_builds_nothing(
    series: FakeSeries, tmp_path: Path
):
    series.write("vllm/ops.py", "print()\n")

    with pytest.raises(SeriesError, match="vllm/ops.py: line 1 is `print"):
        build_wheel(series.root, tmp_path / "dist", "")
    assert not (tmp_path / "dist").exists()
