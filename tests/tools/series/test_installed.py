# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which installed package the tool agrees to change."""

import importlib
import shutil

import pytest

from tests.tools.series.fake_series import UPSTREAM, FakeSeries, tree, write_wheel


@pytest.mark.parametrize("verb", ["apply", "revert"])
@pytest.mark.parametrize("version", ["1.2.4", "1.2.3rc1", "1.2.30+reload.1"])
def test_another_version_is_refused_with_one_line(
    series: FakeSeries, capsys: pytest.CaptureFixture, verb: str, version: str
):
    series.install(write_wheel(series.wheels, "vllm", version, UPSTREAM))
    before = tree(series.site)

    assert series.run(verb) == 1

    assert capsys.readouterr().err == (
        f"vllm: version {version} is installed, and the series is for 1.2.3; use an "
        "environment with that version\n"
    )
    assert tree(series.site) == before


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_an_absent_package_is_one_line(
    series: FakeSeries,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
):
    monkeypatch.setattr("sys.path", [])
    importlib.invalidate_caches()

    assert series.run(verb) == 1
    assert capsys.readouterr().err == "vllm: is not installed here; expected 1.2.3\n"


def test_an_install_without_a_record_of_its_files_is_refused(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    (series.site / "vllm-1.2.3.dist-info/RECORD").write_text("vllm.pth,,\n")
    shutil.rmtree(series.site / "vllm")

    assert series.run("apply") == 1

    assert capsys.readouterr().err == (
        f"vllm: at {series.site} is no install of a wheel; make it one\n"
    )
    assert not (series.site / "vllm").exists()


def test_another_build_with_other_sources_is_refused(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    files = {**UPSTREAM, "vllm/ops.py": "fork = 1\n", "vllm/fork.py": ""}
    series.install(write_wheel(series.wheels, "vllm", "1.2.3+fork", files))
    before = tree(series.site)

    assert series.run("apply") == 1

    message = (
        "is not upstream's in the installed vLLM 1.2.3+fork, which is no build of the "
        "series; install one, or the release itself"
    )
    assert capsys.readouterr().err == (
        f"vllm/fork.py: {message}\nvllm/ops.py: {message}\n2 problems\n"
    )
    assert tree(series.site) == before


def test_another_build_of_the_same_sources_is_accepted(series: FakeSeries):
    files = {**UPSTREAM, "vllm/_C.abi3.so": "for another device"}
    series.install(write_wheel(series.wheels, "vllm", "1.2.3+cu130", files))

    assert series.run("apply") == 0
    assert "3 * x" in (series.site / "vllm/ops.py").read_text()
