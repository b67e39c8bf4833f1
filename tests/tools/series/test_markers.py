# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Markers: how a delta has to import them."""

import pytest

from tests.tools.series.merging import fault, merged

UPSTREAM = "def f():\n    x()\n"
NAMES = "by their own names: from series import replacing, before, after, removed"
EDIT = 'def f():\n    with after("x()"):\n        y()\n'


def test_the_markers_import_is_not_merged():
    assert "series" not in merged(UPSTREAM, f"from series import after\n{EDIT}")


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (
            f"from series import after, before\n{EDIT}",
            "imports the marker 'before' and does not use it; remove the import",
        ),
        (
            EDIT,
            "line 2 uses the marker 'after', which is not imported; add `from series "
            "import after`",
        ),
        (
            'removed("f")\n',
            "line 1 uses the marker 'removed', which is not imported; add `from series "
            "import removed`",
        ),
        (
            f"from series import after, instead_of\n{EDIT}",
            "line 1 is `from series import after, instead_of`; import markers at the "
            f"top, {NAMES}",
        ),
        (
            "from series import after as below\n",
            "line 1 is `from series import after as below`; import markers at the "
            f"top, {NAMES}",
        ),
        (
            "import series\n",
            f"line 1 is `import series`; import markers at the top, {NAMES}",
        ),
        (
            f"if TYPE_CHECKING:\n    from series import after\n\n{EDIT}",
            f"line 2 is `from series import after`; import markers at the top, {NAMES}",
        ),
    ],
)
def test_a_fault_says_how_to_import_them(delta: str, expected: str):
    assert fault(UPSTREAM, delta) == expected


def test_a_module_named_series_elsewhere_is_no_marker():
    text = merged(UPSTREAM, "from .series import after\n\ndef g():\n    after\n")

    assert "from .series import after\n" in text
