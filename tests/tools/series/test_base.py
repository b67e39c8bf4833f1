# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The pinned release: ``series.toml`` and the wheels it names."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.tools.series.fake_series import CPU, UPSTREAM, FakeSeries, write_wheel
from tools.series.base import Pin, Sources, find_wheel, load_pin, recorded_hashes
from tools.series.installed import digest
from tools.series.problems import SeriesError

LOCATION = "VLLM_PRECOMPILED_WHEEL_LOCATION"


def _problem(call, *arguments) -> str:
    with pytest.raises(SeriesError) as caught:
        call(*arguments)
    (problem,) = caught.value.problems
    return str(problem)


@pytest.fixture
def pin(series: FakeSeries) -> Pin:
    """The pin of the small series."""
    return load_pin(series.root)


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pip download nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("version =", "versions =", "KeyError('version')"),
        ("[wheels.cpu]", "[wheels.tpu]", "KeyError('cpu')"),
        ("sha256 =", "sha512 =", "TypeError("),
        ('version = "1.2.3"', "version = ", "TOMLDecodeError("),
        ('label = "reload.1"', 'label = "reload.1"\nwheels = 1', "TOMLDecodeError("),
    ],
)
def test_a_pin_that_lacks_something_is_one_clear_line(
    series: FakeSeries, old: str, new: str, error: str
):
    pin = series.root / "series.toml"
    pin.write_text(pin.read_text().replace(old, new, 1))

    line = _problem(load_pin, series.root)

    assert line.startswith(f"series.toml: cannot be read ({error}")
    assert line.endswith("; expected version, label and two wheels")


def test_an_absent_pin_is_one_clear_line(tmp_path: Path):
    assert _problem(load_pin, tmp_path).startswith(
        "series.toml: cannot be read (FileNotFoundError("
    )


def test_a_base_wheel_of_another_version_than_the_pin_s_is_refused(
    series: FakeSeries,
):
    pin = series.root / "series.toml"
    pin.write_text(pin.read_text().replace('version = "1.2.3"', 'version = "1.2.4"'))

    assert _problem(load_pin, series.root) == (
        f"series.toml: has version 1.2.4, and {series.base.name} as its base wheel; "
        "correct one of the two"
    )


def test_a_wheel_is_found_in_the_folder_given(series: FakeSeries, pin: Pin):
    assert find_wheel(pin.base) == series.base
    assert find_wheel(pin.cpu) == series.cpu


def test_a_wheel_is_found_at_the_path_given_and_the_other_beside_it(
    series: FakeSeries, pin: Pin, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(LOCATION, str(series.base))

    assert find_wheel(pin.base) == series.base
    assert find_wheel(pin.cpu) == series.cpu


def test_a_wheel_is_found_in_the_cache(
    series: FakeSeries, pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(LOCATION)
    shutil.copytree(series.wheels, tmp_path / "cache/vllm-series")

    found = find_wheel(pin.base)

    assert found == tmp_path / "cache/vllm-series" / series.base.name


def test_a_wheel_is_downloaded_once_into_the_cache(
    series: FakeSeries,
    pin: Pin,
    tmp_path: Path,
    no_index: None,
    monkeypatch: pytest.MonkeyPatch,
):
    pytest.importorskip("pip")
    monkeypatch.delenv(LOCATION)
    monkeypatch.setenv("PIP_FIND_LINKS", str(series.wheels))
    if not sys.platform.startswith("linux"):
        pytest.skip("the wheels are for Linux")

    found = find_wheel(pin.base)
    shutil.rmtree(series.wheels)

    assert found == tmp_path / "cache/vllm-series" / series.base.name
    assert find_wheel(pin.base) == found


def test_a_download_that_fails_says_where_to_put_the_wheel(
    pin: Pin, tmp_path: Path, no_index: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(LOCATION)

    assert _problem(find_wheel, pin.base) == (
        f"series.toml: pip could not download {pin.base.file}; put it into "
        f"{tmp_path / 'cache/vllm-series'}, or set {LOCATION} to it"
    )


def test_a_wheel_with_another_hash_is_refused(series: FakeSeries, pin: Pin):
    write_wheel(series.wheels, "vllm", "1.2.3", {**UPSTREAM, "vllm/new.py": ""})

    assert _problem(find_wheel, pin.base) == (
        f"series.toml: {series.base} has SHA-256 {digest(series.base.read_bytes())}, "
        f"expected {pin.base.sha256} for vllm==1.2.3; delete it, or point {LOCATION} "
        "at the right one"
    )


def test_a_wheel_of_another_version_is_refused_where_it_is_given(
    series: FakeSeries, pin: Pin, monkeypatch: pytest.MonkeyPatch
):
    other = write_wheel(series.wheels, "vllm", "1.2.4", UPSTREAM)
    monkeypatch.setenv(LOCATION, str(other))

    assert _problem(find_wheel, pin.base).startswith(
        f"series.toml: {other} has SHA-256"
    )


@pytest.mark.parametrize("given", ["absent.whl", "series.toml", "https://a.b/c.whl"])
def test_a_location_that_is_no_wheel_is_refused(
    series: FakeSeries, pin: Pin, monkeypatch: pytest.MonkeyPatch, given: str
):
    location = given if "//" in given else str(series.root / given)
    monkeypatch.setenv(LOCATION, location)

    assert _problem(find_wheel, pin.base).endswith("; expected a wheel or its folder")


def test_the_sources_are_the_wheel_s(pin: Pin):
    sources = Sources(pin)

    assert set(UPSTREAM) < sources.paths
    assert sources.read("vllm/ops.py") == UPSTREAM["vllm/ops.py"]
    assert sources.hashes == {
        path: digest(text.encode()) for path, text in UPSTREAM.items()
    }


def test_only_hashes_of_the_package_s_files_are_taken_from_a_record():
    record = (
        'vllm/a.py,sha256=AAAA,1\n"vllm/b,c.py",sha256=AA,1\nvllm/d.pyc,,\n'
        "vllm/e.py,md5=AAAA,1\nother/f.py,sha256=AAAA,1\nvllm.dist-info/RECORD,,\n"
    )

    assert recorded_hashes(record) == {"vllm/a.py": "000000", "vllm/b,c.py": "00"}


def test_the_wheel_of_compiled_modules_is_another_package(pin: Pin):
    assert find_wheel(pin.cpu).name == pin.cpu.file
    assert "vllm/_C_AVX2.abi3.so" in CPU
