# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Assignments at module and class level: added, replaced, extended, removed."""

import pytest

from tests.tools.series.merging import expect, fault, merged


def test_new_module_level_names_go_below_the_imports_unless_after_a_definition():
    expect(
        """
        import os

        import sys

        KNOWN = os, sys


        def f(): ...
        """,
        """
        # Why there is a first.
        FIRST = 1
        SECOND: int = 2  # a remark
        \"\"\"What the second is.\"\"\"

        def g(): ...

        TABLE = {"f": f, "g": g}
        """,
        """
        import os
        import sys

        # Why there is a first.
        FIRST = 1
        SECOND: int = 2  # a remark
        \"\"\"What the second is.\"\"\"

        KNOWN = os, sys


        def f(): ...


        def g(): ...


        TABLE = {"f": f, "g": g}
        """,
    )


@pytest.mark.parametrize(
    "head", ["", "# licence\n", '# licence\n"""Doc."""\n', "\n\n", "# a\n\n# b\n"]
)
def test_a_name_is_added_to_a_module_without_imports(head: str):
    text = merged(f"{head}x = 1\n", "new = 0\n")

    assert text.index("new = 0\n") < text.index("x = 1\n")
    assert text.startswith(head.split("\n\n")[0].strip())


def test_new_fields_go_below_those_of_their_class():
    expect(
        """
        class A:
            # leading comment
            x: int  # remark
            \"\"\"What x is.\"\"\"
            # trailing comment

            def f(self): ...
        """,
        """
        class A:
            y: str = "a"
            \"\"\"What y is.\"\"\"

            def g(self): ...

            h = g
        """,
        """
        class A:
            # leading comment
            x: int  # remark
            \"\"\"What x is.\"\"\"
            y: str = "a"
            \"\"\"What y is.\"\"\"
            # trailing comment

            def f(self): ...

            def g(self): ...

            h = g
        """,
    )


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("class A:\n    def f(self): ...\n", "\n    def f(self): ..."),
        (
            'class A:\n    """Doc."""\n\n    def f(self): ...\n',
            "\n    def f(self): ...",
        ),
        ("class A: ...\n", ""),
        ("class A:  # remark\n    # comment\n    pass\n", "    # comment"),
    ],
)
def test_a_class_without_fields_gets_them_at_its_head(upstream: str, expected: str):
    text = merged(upstream, "class A:\n    y: int = 0\n")

    assert text.rstrip().endswith(f"    y: int = 0\n{expected}".rstrip())
    assert "pass" not in text


def test_an_assignment_replaces_upstream_s_together_with_its_remark():
    expect(
        """
        # upstream's comment on SIZE
        SIZE = 1  # upstream's remark
        NAME: str = "a"
        \"\"\"Upstream's docstring.\"\"\"


        class A:
            size = (
                1,  # one
                2,
            )
            name = "b"
            \"\"\"Stays.\"\"\"
        """,
        """
        # This SIZE and NAME comment is for the delta's reader.
        SIZE = [
            2,  # two
        ]
        NAME = "c"
        \"\"\"Ours.\"\"\"

        class A:
            size = 3  # our remark
            name: str = "d"
        """,
        """
        # upstream's comment on SIZE
        SIZE = [
            2,  # two
        ]
        NAME = "c"
        \"\"\"Ours.\"\"\"


        class A:
            size = 3  # our remark
            name: str = "d"
            \"\"\"Stays.\"\"\"
        """,
    )


@pytest.mark.parametrize(
    ("upstream", "delta", "expected"),
    [
        ("X = [1, 2]", "X += [3]", "X = [1, 2, 3]"),
        ("X = [1]  # one", "X += [2, 3]", "X = [1, 2, 3]  # one"),
        ("X = []", "X += [1]", "X = [1]"),
        ("X = (1,)", "X += (2,)", "X = (1, 2)"),
        ("X = ()", "X += (2,)", "X = (2,)"),
        ("X: set[int] = {1}", "X |= {2}", "X: set[int] = {1, 2}"),
        ("X = [1]", "X += 11, 22", "X = [1, 11, 22]"),
        ("X = [1]", "X += (a), (b)", "X = [1, (a), (b)]"),
        ('X = ["#a"]', 'X += ["#b"]', 'X = ["#a", "#b"]'),
        (
            "X = [\n    1,\n    2,  # two\n]",
            "X += [3]",
            "X = [\n    1,\n    2,  # two\n    3,\n]",
        ),
        (
            "X = [\n    1,\n    # the end\n]",
            "X += [2]",
            "X = [\n    1,\n    # the end\n    2,\n]",
        ),
        (
            "X = [\n    1,\n]",
            "X += [\n    # two\n    2,  # is even\n    3,  # is not\n]",
            "X = [\n    1,\n    # two\n    2,  # is even\n    3,  # is not\n]",
        ),
    ],
)
def test_an_augmented_assignment_extends_the_literal(
    upstream: str, delta: str, expected: str
):
    assert merged(f"{upstream}\n", f"{delta}\n") == f"{expected}\n"


def test_a_literal_of_a_class_is_extended():
    expect(
        """
        class A:
            names = ["a"]
        """,
        """
        class A:
            names += ["b"]
        """,
        """
        class A:
            names = ["a", "b"]
        """,
    )


EXTENSION = (
    "X: an augmented assignment adds to a list or tuple literal with +=, to a set "
    "literal with |=, and upstream must assign such a literal; write the assignment "
    "anew"
)


@pytest.mark.parametrize(
    ("upstream", "delta", "expected"),
    [
        ("X = [1]\n", "X += more", EXTENSION),
        ("X = [1]\n", "X -= [1]", EXTENSION),
        ("X = {1}\n", "X += {2}", EXTENSION),
        ("X = list()\n", "X += [2]", EXTENSION),
        ("X = {1: 2}\n", "X |= {2}", EXTENSION),
        ("X: list\n", "X += [2]", EXTENSION),
        (
            "Y = [1]\n",
            "X += [2]",
            "X: is not defined upstream, but the delta edits or removes it",
        ),
        (
            "if a:\n    X = 1\nelse:\n    X = 2\n",
            "X = 3",
            "X: upstream assigns it 2 times, on lines 2, 4; only what stands there "
            "once can be merged by its name",
        ),
        (
            "X, Y = 1, 2\n",
            "X = 3",
            "X: is bound in another way upstream, on line 1 (`X, Y = 1, 2`); choose "
            "another name",
        ),
        (
            "from m import (\n    Y as X,\n)\n",
            "X = 3",
            "X: is bound in another way upstream, on line 1 (`from m import (`); "
            "choose another name",
        ),
        (
            "def X(): ...\n",
            "X = 3",
            "X: is bound in another way upstream, on line 1 (`def X(): ...`); choose "
            "another name",
        ),
        (
            "X = 1\n",
            "X.a = 3",
            "line 1 is `X.a = 3`; a delta holds imports, definitions, assignments to "
            "one name, and removed()",
        ),
        (
            "X = 1\n",
            'from series import after\nX = after("a")',
            "X: line 2 holds the marker 'after' inside another statement; edit blocks "
            "stand directly in the body of a function, removed() in a module or class",
        ),
    ],
)
def test_a_fault_names_what_is_assigned_and_says_what_to_do(
    upstream: str, delta: str, expected: str
):
    assert fault(upstream, delta) == expected


def test_a_name_is_removed_with_its_remark_and_docstring():
    expect(
        """
        import os

        A = 1  # remark
        \"\"\"What A is.\"\"\"
        B = (
            1,
            2,
        )
        C = os
        """,
        """
        from series import removed

        removed("A")
        removed("B")
        D = 4
        """,
        """
        import os

        D = 4

        C = os
        """,
    )
