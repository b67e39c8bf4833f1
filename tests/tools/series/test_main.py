# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.series.fake_series import COMPOSED, FakeSeries
from tools.series.__main__ import ROOT


def _run(*arguments: str, **surroundings: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tools.series", *arguments],
        cwd=ROOT,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_every_verb():
    done = _run("--help")

    assert done.returncode == 0
    verbs = ["check", "compose", "apply", "revert", "diff", "export"]
    assert [verb for verb in verbs if f"    {verb} " in done.stdout] == verbs


@pytest.mark.parametrize("arguments", [[], ["merge"], ["compose"], ["export"]])
def test_a_wrong_call_prints_the_usage(arguments: list[str]):
    done = _run(*arguments)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m tools.series")


def test_the_verbs_work_from_the_shell(series: FakeSeries):
    root = ["--root", str(series.root)]
    place = {"PYTHONPATH": str(series.site)}

    assert _run(*root, "check", **place).stdout.endswith("all apply\n")
    assert _run(*root, "apply", **place).stdout == "4 files written\n"
    assert _run(*root, "apply", **place).stdout == "up to date\n"
    assert (series.site / "vllm/ops.py").read_text() == COMPOSED["vllm/ops.py"]
    assert _run(*root, "revert", **place).stdout == "4 files restored\n"


def test_problems_go_to_standard_error_with_their_number(series: FakeSeries):
    series.write("vllm/ops.py", "print()\nx.y = 1\n")

    done = _run("--root", str(series.root), "check")

    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "vllm/ops.py: line 1 is `print()`",
        "vllm/ops.py: line 2 is `x.y = 1`",
        "2 problems",
    ]


def test_the_encoding_of_the_surroundings_does_not_matter(series: FakeSeries):
    series.write("vllm/kernels/fast/gemm.py", "NAME = 'größer 😀'\n")
    root = ["--root", str(series.root)]
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}

    done = _run(*root, "apply", PYTHONPATH=str(series.site), **ascii_only)

    assert done.returncode == 0, done.stderr
    installed = series.site / "vllm/kernels/fast/gemm.py"
    assert installed.read_bytes() == "NAME = 'größer 😀'\n".encode()
    done = _run(*root, "diff", PYTHONIOENCODING="ascii", **ascii_only)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_stops_early_is_no_error(series: FakeSeries, tmp_path: Path):
    command = (
        f"{sys.executable} -m tools.series --root {series.root} diff 2>{tmp_path}/err"
        " | true"
    )

    subprocess.run(["bash", "-c", command], cwd=ROOT, check=True)

    assert (tmp_path / "err").read_text() == ""
