# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The text of a delta: statements moved to another column."""

import ast
import textwrap

from hypothesis import given, settings
from hypothesis import strategies as st

from tools.series.delta import Delta

STATEMENTS = (
    "x = 1  # remark",
    "# a comment\ny = 2",
    'text = """first\n  second\n\n        third\n"""',
    'text = f"""{x}\n  {y}\n"""',
    "text = b'''one\n two'''",
    'text = (\n    "one"\n    "two"\n)',
    "call(\n    1,  # remark\n    '''\nleft''',\n    # comment\n)",
    "total = 1 + \\\n    2",
    "if x:\n    y()\n\n    # comment\n    z()\nelse:\n    pass",
    '@decorated(\n    1\n)\ndef f(a):\n    """Doc.\n\n    More.\n    """\n    return a',
    "class A:\n    ü = 'ß😀'\n\n    async def g(self): ...",
    "for i in x:\n    with y as z:\n        '''\nstring'''",
    "try:\n    x()\nexcept E as e:\n    raise\nfinally:\n    y()",
)


@settings(deadline=None, database=None, print_blob=True)
@given(
    st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=5),
    st.sampled_from([0, 4, 8, 12]),
    st.sampled_from([0, 4, 8, 12, 16]),
)
def test_moving_statements_never_changes_their_meaning(
    statements: list[str], old: int, new: int
):
    source = "\n".join(statements)
    at_old = Delta(source).statements(Delta(source).tree.body, old)
    nested = _nested(at_old, old)
    body = _innermost(ast.parse(nested), old)

    at_new = _nested(Delta(nested).statements(body, new), new)

    moved = _innermost(ast.parse(at_new), new)
    assert list(map(ast.dump, moved)) == list(map(ast.dump, ast.parse(source).body))
    assert at_new.count("#") == source.count("#")


def _nested(source: str, column: int) -> str:
    """The statements, which stand in a column, inside so many headers."""
    headers = [f"{' ' * depth}if nested:\n" for depth in range(0, column, 4)]
    return "".join(headers) + " " * column + source + "\n"


def _innermost(tree: ast.Module, column: int) -> list[ast.stmt]:
    body = tree.body
    for _ in range(0, column, 4):
        (header,) = body
        assert isinstance(header, ast.If)
        body = header.body
    return body


def test_a_block_has_all_comments_between_its_header_and_what_follows():
    source = textwrap.dedent(
        """
        def f():
            # the edit's own
            with replacing(
                "x"
            ):
                # first

                # second
                y()
                if z:
                    pass
                    # third

                # fourth

            # not the block's
            with after("z"):
                pass
        """
    )
    delta = Delta(source)
    function = delta.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    block, other = function.body
    assert isinstance(block, ast.With) and isinstance(other, ast.With)

    assert delta.block(block, 2) == (
        "# first\n\n  # second\n  y()\n  if z:\n      pass\n      # third\n\n  # fourth"
    )
    assert delta.block(other, 2) == ""


def test_a_comment_left_of_its_block_is_not_cut_into():
    source = "def f():\n        x()\n# at the margin\n        y()\n"
    delta = Delta(source)
    function = delta.tree.body[0]
    assert isinstance(function, ast.FunctionDef)

    assert delta.statements(function.body, 4) == "x()\n    # at the margin\n    y()"
