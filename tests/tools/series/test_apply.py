# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``apply`` and ``revert`` on an installed package."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.series.fake_series import (
    COMPOSED,
    UPSTREAM,
    FakeSeries,
    encoded,
    installed,
    tree,
)
from tools.series.wheel import build_wheel


def test_apply_makes_the_installed_tree_the_composed_one(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    assert series.run("apply") == 0

    assert installed(series) == encoded(UPSTREAM, COMPOSED)
    assert capsys.readouterr().out == "4 files written\n"


def test_apply_twice_changes_nothing_the_second_time(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    series.run("apply")
    once = tree(series.site)
    capsys.readouterr()

    assert series.run("apply") == 0

    assert tree(series.site) == once
    assert capsys.readouterr().out == "up to date\n"


def test_revert_restores_every_byte(series: FakeSeries, capsys: pytest.CaptureFixture):
    before = tree(series.site)
    mode = (series.site / "vllm/ops.py").stat().st_mode
    series.run("apply")
    capsys.readouterr()

    assert series.run("revert") == 0

    assert tree(series.site) == before
    assert (series.site / "vllm/ops.py").stat().st_mode == mode
    assert capsys.readouterr().out == "4 files restored\n"


def test_revert_without_apply_changes_nothing(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    before = tree(series.site)

    assert series.run("revert") == 0

    assert tree(series.site) == before
    assert capsys.readouterr().out == "nothing was applied\n"


def test_revert_works_while_the_overlay_is_broken(series: FakeSeries):
    before = tree(series.site)
    series.run("apply")
    series.write("vllm/ops.py", "def scale(")
    series.write("docs/series.md", "nothing")

    assert series.run("revert") == 0
    assert tree(series.site) == before


def test_apply_follows_the_overlay(series: FakeSeries):
    before = tree(series.site)
    series.run("apply")
    series.remove("vllm/ops.py")
    series.remove("vllm/kernels/fast/gemm.py")
    series.write("vllm/layers/linear.py", "class Linear:\n    bias = 1\n")

    assert series.run("apply") == 0

    expected = encoded(UPSTREAM, COMPOSED)
    del expected["vllm/kernels/fast/gemm.py"]
    expected["vllm/ops.py"] = UPSTREAM["vllm/ops.py"].encode()
    expected["vllm/layers/linear.py"] = b"class Linear:\n    bias = 1\n"
    assert installed(series) == expected
    assert series.run("apply") == 0
    assert series.run("revert") == 0
    assert tree(series.site) == before


def test_byte_code_of_a_changed_file_goes_with_it(series: FakeSeries):
    cache = Path(importlib.util.cache_from_source(str(series.site / "vllm/ops.py")))
    cache.parent.mkdir()
    cache.write_bytes(b"stale")

    series.run("apply")
    assert not cache.exists()
    cache.write_bytes(b"stale")
    series.run("revert")
    assert not cache.exists()


def test_a_link_to_a_shared_file_is_not_written_through(series: FakeSeries):
    shared = series.site.parent / "shared.py"
    shared.write_text(UPSTREAM["vllm/ops.py"])
    (series.site / "vllm/ops.py").unlink()
    os.link(shared, series.site / "vllm/ops.py")

    series.run("apply")

    assert shared.read_text() == UPSTREAM["vllm/ops.py"]


@pytest.mark.parametrize("device", ["", "cpu"])
def test_a_wheel_of_the_series_is_up_to_date(
    series: FakeSeries, capsys: pytest.CaptureFixture, device: str
):
    series.install(build_wheel(series.root, series.wheels, device))
    before = tree(series.site)
    capsys.readouterr()

    assert series.run("apply") == 0

    assert tree(series.site) == before
    assert capsys.readouterr().out == "up to date\n"


@pytest.mark.parametrize("device", ["", "cpu"])
def test_files_of_an_older_wheel_of_the_series_go_back_to_upstream_s(
    series: FakeSeries, device: str
):
    series.install(build_wheel(series.root, series.wheels, device))
    before = tree(series.site)
    for path in COMPOSED:
        series.remove(path)

    assert series.run("apply") == 0
    after = installed(series)
    assert series.run("apply") == 0

    expected = encoded(UPSTREAM)
    for path in before:
        if path.endswith((".so", "_version.py")):
            expected[path] = before[path] or b""
    assert after == expected == installed(series)
    assert series.run("revert") == 0
    assert tree(series.site) == before


def test_a_reinstalled_package_is_applied_to_and_reverted_as_a_new_one(
    series: FakeSeries,
):
    series.run("apply")
    series.install(series.base)

    assert series.run("apply") == 0
    assert installed(series) == encoded(UPSTREAM, COMPOSED)
    assert series.run("revert") == 0
    assert installed(series) == encoded(UPSTREAM)


def test_revert_after_a_reinstall_removes_only_what_apply_had_added(
    series: FakeSeries,
):
    series.run("apply")
    series.install(series.base)

    assert series.run("revert") == 0
    assert installed(series) == encoded(UPSTREAM)


def test_revert_gives_the_bytes_of_the_wheel_installed_last(series: FakeSeries):
    series.run("apply")
    series.install(build_wheel(series.root, series.wheels, ""))
    before = installed(series)
    series.write("vllm/ops.py", "def scale(x):\n    return 4 * x\n")
    series.write("vllm/kernels/fast/gemm.py", "def gemm(): ...\n")

    assert series.run("apply") == 0
    assert installed(series) != before
    assert series.run("revert") == 0
    assert installed(series) == before


def _edit(file: Path) -> None:
    file.write_text("edited = True\n")


@pytest.mark.parametrize("spoil", [_edit, Path.unlink], ids=["edited", "deleted"])
@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_file_that_somebody_else_changed_is_refused(
    series: FakeSeries,
    capsys: pytest.CaptureFixture,
    spoil: Callable[[Path], None],
    verb: str,
):
    series.run("apply")
    spoil(series.site / "vllm/ops.py")
    spoil(series.site / "vllm/layers/linear.py")
    series.write("vllm/kernels/fast/gemm.py", "def gemm(): ...\n")
    before = tree(series.site)
    capsys.readouterr()

    assert series.run(verb) == 1

    message = (
        "was changed in the installed vLLM by something else than this tool; save the "
        "change, then reinstall vLLM"
    )
    assert capsys.readouterr().err == (
        f"vllm/layers/linear.py: {message}\nvllm/ops.py: {message}\n2 problems\n"
    )
    assert tree(series.site) == before


def test_a_file_in_the_place_of_a_new_module_is_refused(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    (series.site / "vllm/kernels").mkdir()
    (series.site / "vllm/kernels/tiles.json").write_text("mine")
    before = tree(series.site)

    assert series.run("apply") == 1
    assert "vllm/kernels/tiles.json: was changed" in capsys.readouterr().err
    assert tree(series.site) == before


def test_a_lost_backup_is_reported_before_anything_is_restored(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    series.run("apply")
    (series.site / "vllm/.series/original/vllm/ops.py").unlink()
    before = tree(series.site)
    capsys.readouterr()

    assert series.run("revert") == 1
    assert capsys.readouterr().err == (
        "vllm/ops.py: cannot be restored, its backup is gone; reinstall vLLM\n"
    )
    assert tree(series.site) == before


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_damaged_record_is_reported(
    series: FakeSeries, capsys: pytest.CaptureFixture, verb: str
):
    series.run("apply")
    record = series.site / "vllm/.series/applied.json"
    record.write_text("{")
    capsys.readouterr()

    assert series.run(verb) == 1
    assert capsys.readouterr().err == (
        f"{record}: is damaged; delete its folder and reinstall vLLM\n"
    )


def test_the_applied_code_is_what_python_runs(series: FakeSeries):
    code = "import vllm.ops, vllm.kernels.fast.gemm; print(vllm.ops.scale(1))"
    command = [sys.executable, "-c", code]
    surroundings = {**os.environ, "PYTHONPATH": str(series.site)}

    def result() -> str:
        return subprocess.run(
            command, env=surroundings, capture_output=True, text=True, check=False
        ).stdout

    assert result() == ""
    series.run("apply")
    assert result() == "3\n"
    series.run("revert")
    assert result() == ""
