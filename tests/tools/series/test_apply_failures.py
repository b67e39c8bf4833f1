# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``apply`` and ``revert`` that fail or are killed midway."""

import multiprocessing
import os
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


class _Replace:
    """``os.replace`` that fails from one call on, for so many calls."""

    def __init__(self, first: int, count: int, error: BaseException) -> None:
        self._calls = 0
        self._failing = range(first, first + count)
        self._error = error
        self._replace = os.replace

    def __call__(self, source: Path, target: Path) -> None:
        self._calls += 1
        if self._calls in self._failing:
            raise self._error
        self._replace(source, target)


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_failure_leaves_the_tree_as_it_was(
    series: FakeSeries, monkeypatch: pytest.MonkeyPatch, verb: str, call: int
):
    if verb == "revert":
        series.run("apply")
    before = tree(series.site)
    original = os.replace
    failing = _Replace(call, 1, OSError(28, "No space left on device"))
    monkeypatch.setattr(os, "replace", failing)

    status = series.run(verb)

    monkeypatch.setattr(os, "replace", original)
    files = 5 if verb == "apply" else 2
    assert status == (1 if call <= files else 0)
    if status:
        assert tree(series.site) == before
    else:
        composed = COMPOSED if verb == "apply" else {}
        assert installed(series) == encoded(UPSTREAM, composed)


def test_an_interrupt_leaves_the_tree_as_it_was(
    series: FakeSeries, monkeypatch: pytest.MonkeyPatch
):
    before = tree(series.site)
    monkeypatch.setattr(os, "replace", _Replace(3, 1, KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        series.run("apply")

    assert tree(series.site) == before


def test_after_a_failed_rollback_revert_and_apply_still_work(
    series: FakeSeries,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    before = tree(series.site)
    original = os.replace
    monkeypatch.setattr(os, "replace", _Replace(5, 9, OSError(5, "I/O error")))
    assert series.run("apply") == 1
    assert capsys.readouterr().err == (
        "vllm: cannot be written: [Errno 5] I/O error; run revert\n"
    )
    monkeypatch.setattr(os, "replace", original)
    assert installed(series) != encoded(UPSTREAM)

    assert series.run("apply") == 0
    assert installed(series) == encoded(UPSTREAM, COMPOSED)
    assert series.run("revert") == 0
    assert tree(series.site) == before


def test_a_folder_that_cannot_be_written_is_one_clear_line(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    (series.site / "vllm/kernels").write_text("a file where a folder has to be")
    before = tree(series.site)

    assert series.run("apply") == 1

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vllm: cannot be written: ")
    assert line.endswith("; nothing was changed")
    assert tree(series.site) == before


def _killed(run: Callable[[], int], call: int) -> int | None:
    """Runs in a process that ends, as if killed, at the n-th ``os.replace``.

    Returns:
        The exit status: 9 if it was killed.
    """

    def body() -> None:
        replace, calls = os.replace, 0

        def replace_or_die(source: Path, target: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == call:
                os._exit(9)
            replace(source, target)

        os.replace = replace_or_die  # type: ignore[assignment]
        os._exit(run())

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("then", ["apply", "revert"])
def test_a_killed_apply_can_be_finished_or_reverted(series: FakeSeries, then: str):
    before = tree(series.site)
    for call in range(1, 7):
        assert _killed(lambda: series.run("apply"), call) == 9
        if then == "apply":
            assert series.run("apply") == 0
            assert installed(series) == encoded(UPSTREAM, COMPOSED)
        assert series.run("revert") == 0
        assert tree(series.site) == before
    assert _killed(lambda: series.run("apply"), 7) == 0


def test_a_second_apply_that_was_killed_can_be_followed_by_a_third(
    series: FakeSeries,
):
    before = tree(series.site)
    series.run("apply")
    for call in range(1, 6):
        for path in ("vllm/ops.py", "vllm/layers/linear.py"):
            series.write(path, f"new_{call} = 1\n")
        series.write("vllm/kernels/fast/gemm.py", f"new_{call} = 1\n")
        assert _killed(lambda: series.run("apply"), call) == 9
        series.write("vllm/ops.py", f"newer_{call} = 1\n")
        assert series.run("apply") == 0
        assert f"newer_{call}" in (series.site / "vllm/ops.py").read_text()
    assert series.run("revert") == 0
    assert tree(series.site) == before


@pytest.mark.parametrize("then", ["apply", "revert"])
def test_a_killed_revert_can_be_finished_or_applied_over(series: FakeSeries, then: str):
    before = tree(series.site)
    for call in range(1, 3):
        series.run("apply")
        assert _killed(lambda: series.run("revert"), call) == 9
        if then == "apply":
            assert series.run("apply") == 0
            assert installed(series) == encoded(UPSTREAM, COMPOSED)
        assert series.run("revert") == 0
        assert tree(series.site) == before


def test_apply_is_atomic_for_files_that_a_fault_keeps_from_merging(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    before = tree(series.site)
    series.write("vllm/ops.py", 'def scale(x, y):\n    """Text."""\n')

    assert series.run("apply") == 1
    assert "vllm/ops.py: scale: signature (x, y) differs" in capsys.readouterr().err
    assert tree(series.site) == before
