# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Deltas whose definitions cannot be merged."""

import pytest

from tests.tools.series.merging import UPSTREAM, fault, faults


def test_overloads_for_an_upstream_function_are_refused():
    upstream = """
        def f(x):
            return x
        """
    delta = """
        @overload
        def f(x: int) -> int: ...
        """
    assert fault(upstream, delta) == (
        "f: is bound in another way upstream, on line 2 (`def f(x):`); choose another "
        "name"
    )


def test_every_fault_of_a_delta_is_reported():
    found = faults(
        UPSTREAM,
        """
        from series import replacing, removed

        removed("triples")
        print("hello")

        def double(x):
            with replacing("missing()"):
                pass
            with replacing("also_missing()"):
                pass

        class Shape:
            def area(self, x):
                with replacing("os"):
                    sys
        """,
    )

    assert [line.split(":")[0] for line in found] == [
        "triples",
        "line 5 is `print('hello')`; a delta holds imports, definitions, assignments "
        "to one name, and removed()",
        "double",
        "double",
        "Shape.area",
    ]


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ("def f(:", "line 1 is not Python: invalid syntax"),
        (
            "def double(x): ...\ndef double(x): ...",
            "double: line 2 defines it a second time; put all that changes into one "
            "definition",
        ),
        (
            "class Shape:\n    x = 1\n    x = 2",
            "Shape.x: line 3 defines it a second time; put all that changes into one "
            "definition",
        ),
        ("def Shape(): ...", "Shape: is a class upstream, and a function in the delta"),
        ("class halve: ...", "halve: is a function upstream, and a class in the delta"),
        (
            "def os(): ...",
            "os: is bound in another way upstream, on line 3 (`import os`); choose "
            "another name",
        ),
        (
            "class Shape(Base): ...",
            "Shape: bases (Base) differ from upstream's (); leave them out",
        ),
        (
            "@final\nclass Shape: ...",
            "Shape: decorator @final is not among upstream's (none); leave decorators "
            "out, or write the whole definition anew",
        ),
        (
            'from series import removed\nremoved("half")',
            "half: is not defined upstream, but the delta edits or removes it; did you "
            "mean 'halve'?",
        ),
        (
            'from series import after\ndef half(x):\n    with after("y"):\n        z',
            "half: is not defined upstream, but the delta edits or removes it; did you "
            "mean 'halve'?",
        ),
        (
            "from series import removed\n\n"
            'class Shape:\n    def turn(self):\n        removed("y")',
            "Shape.turn: is not defined upstream, but the delta edits or removes it",
        ),
        (
            "from series import removed\nremoved('double')\ndef double(x): ...",
            "double: edits a statement that another edit has already changed (the edit "
            "of double); write one edit that does both",
        ),
        (
            "class Shape:\n    import sys",
            "Shape: line 2 is `import sys`; a delta holds imports, definitions, "
            "assignments to one name, and removed()",
        ),
        (
            'def double(x): ...\n"""A stray string."""',
            "line 2 is `'A stray string.'`; a delta holds imports, definitions, "
            "assignments to one name, and removed()",
        ),
        (
            "def extra(x):\n    nonlocal x\n",
            "the merged file is not Python: name 'x' is parameter and nonlocal, at "
            "`nonlocal x`",
        ),
    ],
)
def test_a_fault_names_its_definition_and_says_what_to_do(delta: str, expected: str):
    assert fault(UPSTREAM, delta) == expected


def test_a_definition_that_upstream_has_twice_is_refused():
    upstream = """
        if flag:
            def f(): ...
        else:
            def f(): ...
        """
    assert fault(upstream, "def f(): ...") == (
        "f: upstream defines it 2 times, on lines 3, 5; only what stands there once "
        "can be merged by its name"
    )


def test_an_upstream_file_that_the_parser_does_not_know_is_refused():
    upstream = """
        def f():
            if x:
                return a, *((b,) * 2)
            else:
                return a, *((b,) * 3)
        """
    assert fault(upstream, "def g(): ...") == (
        "upstream's line 4 is beyond ast-grep: no delta can change it"
    )
