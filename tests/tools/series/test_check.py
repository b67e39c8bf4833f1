# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``check``: what composing alone does not show."""

import pytest

from tests.tools.series.fake_series import UPSTREAM, FakeSeries


def test_a_series_that_is_in_order_passes(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    assert series.run("check") == 0
    assert capsys.readouterr().out == "4 patches, 4 files: all apply\n"


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (
            "def scale(x):\n    return 2 * x\n",
            "vllm/ops.py: changes nothing; remove it (upstream may have the change)\n",
        ),
        (
            "# nothing\n",
            "vllm/ops.py: changes nothing; remove it (upstream may have the change)\n",
        ),
        (
            "def scale(x):\n    return y * x\n",
            "vllm/ops.py: line 2 of the merged file: F821 Undefined name `y`\n",
        ),
        (
            "from series import after\n\ndef scale(x):\n    return x\n",
            "vllm/ops.py: imports the marker 'after' and does not use it; remove the "
            "import\n",
        ),
    ],
)
def test_a_delta_that_merges_but_is_wrong_is_refused(
    series: FakeSeries, capsys: pytest.CaptureFixture, delta: str, expected: str
):
    series.write("vllm/ops.py", delta)

    assert series.run("check") == 1
    assert capsys.readouterr().err == expected


def test_an_upstream_file_that_is_not_formatted_is_reported(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    series.repin({**UPSTREAM, "vllm/ops.py": "def scale(x):\n  return 2*x\n"})

    assert series.run("check") == 1
    assert capsys.readouterr().err == (
        "vllm/ops.py: upstream's file is not formatted: its diff would not be clean\n"
    )
