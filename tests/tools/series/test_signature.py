# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Headers of functions whose body is made of edit blocks."""

import pytest

from tests.tools.series.merging import expect, fault, faults, merged


def _merged(theirs: str, ours: str) -> str:
    """The merged header of a function, of which nothing else changes."""
    text = merged(f"{theirs}:\n    return x\n", f'{ours}:\n    """Ours."""\n')
    return text.split(':\n    """Ours."""')[0]


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ("def f(a, b=1)", "def f(a, b=1)", "def f(a, b=1)"),
        ("def f(a: int, b: str = 'x')", "def f(a, b='x')", None),
        ("def f(a, *b: int, c, **d)", "def f(a, *b, c, **d)", None),
        ("def f(a, /, b, *, c=1)", "def f(a, /, b, *, c=1)", None),
        ("async def f(a) -> int", "async def f(a)", None),
        ("def f(a)", "def f(a: int) -> str", "def f(a: int) -> str"),
        ("def f(a: int = 1) -> A", "def f(a: str = 1) -> B", "def f(a: str = 1) -> B"),
        ("def f(a=1)", "def f(a: int = 1)", "def f(a: int = 1)"),
        ("def f(*a, **b)", "def f(*a: int, **b: str)", "def f(*a: int, **b: str)"),
        ("def f(a: int)", "def f(a: int, b: int = 2)", "def f(a: int, b: int = 2)"),
        ("def f(a, b=1)", "def f(a, c=(2 + 3), b=1)", "def f(a, c=2 + 3, b=1)"),
        ("def f(a)", "def f(a, b=(\n  1, 2))", "def f(a, b=(1, 2))"),
        ("def f(a=0, b=1)", "def f(a=0, c=2, d=3, b=1)", "def f(a=0, c=2, d=3, b=1)"),
        ("def f(a)", "def f(a: int, b=2, *, c=3)", "def f(a: int, b=2, *, c=3)"),
        ("def f(a)", "def f(a, *, b=2, c=3)", "def f(a, *, b=2, c=3)"),
        ("def f(a, *, c)", "def f(a, *, b=2, c)", "def f(a, *, b=2, c)"),
        ("def f(a, *, c)", "def f(a, b=2, *, c, d=3)", "def f(a, b=2, *, c, d=3)"),
        ("def f(a, *b)", "def f(a, *b, c=2)", "def f(a, *b, c=2)"),
        ("def f(a)", "def f(a, *b, c=2, **d)", "def f(a, *b, c=2, **d)"),
        ("def f(a, /)", "def f(a, /, b=2)", "def f(a, /, b=2)"),
        ("def f(a, /)", "def f(a, b=2, /, c=3)", "def f(a, b=2, /, c=3)"),
        ("def f(**a)", "def f(b=1, **a)", "def f(b=1, **a)"),
        ("def f()", "def f(a=1, *, b=2)", "def f(a=1, *, b=2)"),
        ("def f(*, a)", "def f(*, b=2, a)", "def f(*, b=2, a)"),
        ("def f(*, a)", "def f(b=2, *, a)", "def f(b=2, *, a)"),
    ],
)
def test_the_header_becomes_what_the_delta_says(
    theirs: str, ours: str, expected: str | None
):
    assert _merged(theirs, ours) == (expected or theirs.replace("'", '"'))


def test_comments_and_commas_of_a_long_header_stay():
    expect(
        """
        class A:
            def f(
                self,
                first,  # remark
                # comment
                second: int,
            ):
                text = \"\"\"
        at the left margin
        \"\"\"
                return text
        """,
        """
        class A:
            def f(self, first, second, added: str = "ü", *, last=None):
                \"\"\"Ours.\"\"\"
        """,
        """
        class A:
            def f(
                self,
                first,  # remark
                # comment
                second: int,
                added: str = "ü",
                *,
                last=None,
            ):
                \"\"\"Ours.\"\"\"
                text = \"\"\"
        at the left margin
        \"\"\"
                return text
        """,
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("def f(a, b)", "def f(a)"),
        ("def f(a, b)", "def f(b, a)"),
        ("def f(a)", "def f(b)"),
        ("def f(a=1)", "def f(a=2)"),
        ("def f(a=1)", "def f(a)"),
        ("def f(a)", "def f(a, b)"),
        ("def f(a)", "def f(*, a)"),
        ("def f(a, /)", "def f(a)"),
        ("def f(*a)", "def f(a)"),
        ("def f(a)", "async def f(a)"),
    ],
)
def test_another_signature_than_upstream_s_is_refused(theirs: str, ours: str):
    message = fault(f"{theirs}:\n    return a\n", f'{ours}:\n    """Ours."""\n')

    shown = [text.replace("def f", "") for text in (ours, theirs)]
    assert message == (
        f"f: signature {shown[0]} differs from upstream's {shown[1]}; repeat "
        "upstream's (annotations may be left out, parameters with a default may be "
        "added), or write the whole function anew"
    )


def test_blocks_are_checked_even_if_the_signature_differs():
    found = faults(
        "def f(a):\n    return a\n",
        "from series import after\n\n"
        'def f(b):\n    with after("missing"):\n        x()\n',
    )

    assert [message[:21] for message in found] == [
        "f: signature (b) diff",
        "f: 'missing': matched",
    ]
