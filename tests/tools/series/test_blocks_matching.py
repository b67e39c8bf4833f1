# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks: what a pattern finds, and expressions in statements."""

import textwrap

import pytest

from tests.tools.series.loader import LOADER, loader_fault, merged_loader
from tests.tools.series.merging import expect, fault, merged


@pytest.mark.parametrize(
    ("pattern", "expression", "old", "new"),
    [
        ("self.strict", "self.strict and path", "self.strict", "self.strict and path"),
        ("True", "(\n    a\n    or b\n)", "= True", "= a or b"),
        ("open(path)", "a, b", "open(path)", "a, b"),
        ("path", "a, b", None, None),
        ("file", "yield", None, None),
    ],
)
def test_an_expression_takes_the_place_of_an_expression(
    pattern: str, expression: str, old: str | None, new: str
):
    block = f"with replacing({pattern!r}):\n{textwrap.indent(expression, ' ' * 4)}\n"
    if old is None:
        assert "times" in loader_fault(block)
    else:
        assert merged_loader(block) == LOADER.replace(old, new, 1)


def test_expressions_of_one_statement_are_replaced_one_by_one():
    expect(
        """
        def f(layer):
            return run(w1=layer.w1, w2=layer.w2)
        """,
        """
        from series import replacing

        def f(layer):
            with replacing("layer.w1"):
                one(layer)
            with replacing("layer.w2"):
                two(layer)
        """,
        """
        def f(layer):
            return run(w1=one(layer), w2=two(layer))
        """,
    )


@pytest.mark.parametrize(
    ("statement", "pattern", "new", "expected"),
    [
        ("x = a * b", "b", "c + d", "x = a * (c + d)"),
        ("x = a + b", "b", "c * d", "x = a + c * d"),
        ("x = f(a, b)", "b", "c, d", "x = f(a, (c, d))"),
        ("x = a.b", "a", "await_(c)", "x = await_(c).b"),
        ("x = a.b", "a", "c or d", "x = (c or d).b"),
        ("x = -a", "a", "c if d else e", "x = -(c if d else e)"),
        ("x = f(a)", "a", "i for i in c", None),
        ("x = f(a)", "a", "lambda: c", "x = f(lambda: c)"),
        ("x = a < b", "b", "c < d", "x = a < (c < d)"),
        ('x = f"{a}"', "a", "c + d", 'x = f"{c + d}"'),
        ("if a:\n        b()", "a", "(yield)", "if (yield):\n        b()"),
    ],
)
def test_parentheses_stand_where_precedence_needs_them(
    statement: str, pattern: str, new: str, expected: str | None
):
    upstream = f"def f():\n    {statement}\n"
    delta = (
        "from series import replacing\n\n"
        f"def f():\n    with replacing({pattern!r}):\n        {new}\n"
    )
    if expected is None:
        assert "is not Python" in fault(upstream, delta)
    else:
        assert merged(upstream, delta) == f"def f():\n    {expected}\n"


def test_two_expressions_of_one_header_can_be_replaced():
    expect(
        """
        def f():
            if a and b:
                c()
        """,
        """
        from series import replacing

        def f():
            with replacing("a"):
                x
            with replacing("b"):
                y
            with replacing("c()"):
                z()
        """,
        """
        def f():
            if x and y:
                z()
        """,
    )


REPEATED = """\
def f(items):
    start()
    use(items)
    if items:
        use(items)
        # and then
        return
    elif more:
        use(items)
        stop()
        return
    for item in items:
        with lock:
            use(items)
"""


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        ('"use(items)", follows="start()"', 3),
        ('"use(items)", inside="for $A in $B: $$$"', 14),
        ('"use(items)", inside="with lock: $$$"', 14),
        ('"return", follows="use(items)"', 7),
        ('"return", inside="if items: $$$", follows="stop()"', 11),
        ('"use($A)", inside="elif more: $$$"', 9),
        ('"use($A)", inside="else: $$$"', None),
    ],
)
def test_inside_and_follows_tell_statements_that_recur_apart(
    marker: str, line: int | None
):
    delta = (
        "from series import replacing\n\n"
        f"def f(items):\n    with replacing({marker}):\n        found()\n"
    )
    if line is None:
        assert "is not an ast-grep pattern" in fault(REPEATED, delta)
        return
    lines = REPEATED.splitlines()
    lines[line - 1] = lines[line - 1].replace("use(items)", "found()")
    lines[line - 1] = lines[line - 1].replace("return", "found()")

    assert merged(REPEATED, delta).splitlines() == lines


def test_statements_of_a_nested_function_are_found():
    expect(
        """
        def f():
            @wraps
            def g(x):
                return x

            return g
        """,
        """
        from series import before, replacing

        def f():
            with replacing("return x"):
                return x + 1
            with before("def g($$$): $$$"):
                count = 0
        """,
        """
        def f():
            count = 0

            @wraps
            def g(x):
                return x + 1

            return g
        """,
    )


def test_a_nested_function_with_decorators_is_replaced_as_a_whole():
    expect(
        """
        async def f():
            @wraps
            async def g(x):
                await x
        """,
        """
        from series import replacing

        async def f():
            with replacing("async def g(x): $$$"):
                g = None
        """,
        """
        async def f():
            g = None
        """,
    )


def test_the_header_and_decorators_are_not_searched():
    expect(
        """
        @register(size)
        def f(x=size):
            return size
        """,
        """
        from series import replacing

        def f(x=size):
            with replacing("size"):
                x
        """,
        """
        @register(size)
        def f(x=size):
            return x
        """,
    )


def test_outside_means_the_statement_that_no_such_block_holds():
    expect(
        """
        def f():
            if x:
                close()
            close()
        """,
        """
        from series import replacing

        def f():
            with replacing("close()", outside="if x: $$$"):
                release()
        """,
        """
        def f():
            if x:
                close()
            release()
        """,
    )
