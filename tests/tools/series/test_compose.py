# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``compose``: the whole merged tree."""

from pathlib import Path

import pytest

from tests.tools.series.fake_series import COMPOSED, UPSTREAM, FakeSeries, tree


def test_the_tree_is_upstream_s_python_with_the_series_in_it(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    folder = series.root / "out"

    assert series.run("compose", str(folder)) == 0

    python = {path: text for path, text in UPSTREAM.items() if path.endswith(".py")}
    expected = {path: text.encode() for path, text in (python | COMPOSED).items()}
    assert tree(folder) == expected
    assert capsys.readouterr().out == f"{len(expected)} files written to {folder}\n"


def test_a_folder_that_holds_something_is_left_alone(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    folder = series.root / "out"
    series.write("out/mine.txt", "mine")

    assert series.run("compose", str(folder)) == 1

    assert tree(folder) == {"mine.txt": b"mine"}
    assert capsys.readouterr().err == (
        f"{folder}: exists and is not an empty folder; give another, or empty it\n"
    )


def test_nothing_is_written_if_the_series_is_at_fault(
    series: FakeSeries, tmp_path: Path
):
    series.write("vllm/ops.py", "print()\n")

    assert series.run("compose", str(tmp_path / "out")) == 1
    assert not (tmp_path / "out").exists()
