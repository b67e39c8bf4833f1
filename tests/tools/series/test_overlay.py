# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The overlay: what belongs into it, and what it composes to."""

import pytest

from tests.tools.series.fake_series import COMPOSED, OVERLAY, FakeSeries
from tools.series.base import Sources
from tools.series.overlay import compose, load_overlay
from tools.series.problems import SeriesError


def _composed(series: FakeSeries) -> dict[str, str]:
    overlay = load_overlay(series.root)
    return compose(overlay, Sources(overlay.pin))


def _problems(series: FakeSeries) -> list[str]:
    with pytest.raises(SeriesError) as caught:
        _composed(series)
    return [str(problem) for problem in caught.value.problems]


def test_deltas_are_merged_and_new_modules_taken_as_they_stand(series: FakeSeries):
    unformatted = "def  gemm( ) : ...\r\n"
    (series.root / "vllm/kernels/fast/gemm.py").write_bytes(unformatted.encode())

    assert _composed(series) == {
        **COMPOSED,
        "vllm/kernels/fast/gemm.py": unformatted,
    }


def test_merged_files_are_formatted_and_their_imports_sorted(series: FakeSeries):
    series.write(
        "vllm/ops.py",
        """
        from vllm.layers import linear
        import sys
        import os

        def scale(x):
            return linear, {  'x':x }, sys
        """,
    )

    assert _composed(series)["vllm/ops.py"] == (
        "import sys\n\nfrom vllm.layers import linear\n\n\n"
        'def scale(x):\n    return linear, {"x": x}, sys\n\n\n'
        "def shift(x):\n    return x + 1\n"
    )


def test_byte_code_in_the_overlay_is_no_part_of_it(series: FakeSeries):
    series.write("vllm/__pycache__/ops.cpython-311.pyc", "")

    assert _composed(series) == COMPOSED


@pytest.mark.parametrize(
    ("path", "text", "field", "expected"),
    [
        (
            "vllm/moved.py",
            'from series import removed\nremoved("scale")\n',
            "Edits",
            "vllm/moved.py: is a delta with markers, but upstream has no file at this "
            "path; correct the path (upstream may have moved the file)",
        ),
        (
            "vllm/moved.py",
            'from series import removed\nremoved("scale")\n',
            "Adds",
            "vllm/moved.py: is a delta with markers, but upstream has no file at this "
            "path; correct the path (upstream may have moved the file)",
        ),
        (
            "vllm/moved.py",
            "x = 1\n",
            "Edits",
            "vllm/moved.py: is listed under Edits, but upstream has no such file; list "
            "it under Adds",
        ),
        (
            "vllm/_version.py",
            "x = 1\n",
            "Adds",
            "vllm/_version.py: is a new module at a path that upstream has; move it, "
            "or make it a delta and list it under Edits (upstream may already have the "
            "change)",
        ),
        (
            "vllm/layers/sizes.json",
            "{}",
            "Edits",
            "vllm/layers/sizes.json: only .py files can be deltas",
        ),
        (
            "vllm/__init__.py",
            "x = 1\n",
            "Edits",
            "vllm/__init__.py: would shadow the installed package in runs from the "
            "root; remove it",
        ),
    ],
)
def test_a_file_in_the_wrong_place_is_refused(
    series: FakeSeries, path: str, text: str, field: str, expected: str
):
    series.write(path, text)
    entries = [(file, "Adds", [file]) for file in OVERLAY if "kernels" in file]
    entries += [(file, "Edits", [file]) for file in OVERLAY if "kernels" not in file]
    series.catalogue(*entries, ("Another", field, [path]))

    assert _problems(series) == [expected]


def test_a_new_module_may_name_a_function_as_a_marker_is_named(series: FakeSeries):
    text = "def before(x): ...\n\n\nbefore(1)\n"
    series.write("vllm/kernels/fast/gemm.py", text)

    assert _composed(series)["vllm/kernels/fast/gemm.py"] == text


def test_a_file_that_is_not_text_is_refused(series: FakeSeries):
    (series.root / "vllm/kernels/tiles.json").write_bytes(b"\xff\xfe")

    assert _problems(series) == [
        "vllm/kernels/tiles.json: is not text in UTF-8 (invalid start byte)"
    ]


def test_all_faults_of_all_files_are_reported_together(series: FakeSeries):
    series.write(
        "vllm/ops.py", "def scale(x, y):\n    '''Ours.'''\n\nimport x.y; f()\n"
    )
    series.write("vllm/layers/linear.py", "def f(:\n")
    series.write("vllm/stray.py", "x = 1\n")
    series.write("vllm/lost.py", "from series import after\n")

    assert [problem.split(";")[0][:60] for problem in _problems(series)] == [
        "vllm/lost.py: is owned by no entry of docs/series.md",
        "vllm/stray.py: is owned by no entry of docs/series.md",
        "vllm/layers/linear.py: line 1 is not Python: invalid syntax",
        "vllm/lost.py: is a delta with markers, but upstream has no f",
        "vllm/ops.py: scale: signature (x, y) differs from upstream's",
        "vllm/ops.py: scale: the docstring \"'''Ours.'''\" is not writt",
        "vllm/ops.py: line 4 is `f()`",
    ]
