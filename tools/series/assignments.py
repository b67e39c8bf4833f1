# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edits of upstream's assignments to one name, at module or class level."""

import ast
from collections.abc import Sequence

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.delta import Delta
from tools.series.edits import Edit, FaultError, line_end, removal

_LITERALS = ("list", "tuple", "set")


def replace_assignment(
    pair: Sequence[ast.stmt], delta: Delta, found: SgNode, text: str, name: str
) -> Edit:
    """Puts a delta's assignment in the place of upstream's.

    Args:
        pair: The assignment and, if it has one, its docstring.
        delta: The delta.
        found: Upstream's assignment.
        text: Upstream's source.
        name: Qualified name of what is assigned.
    """
    source = delta.statements(pair, found.range().start.column, comments=False)
    start, end = up.span(found)
    docstring = _docstring_of(found)
    if len(pair) > 1 and docstring is not None:
        end = up.span(docstring)[1]
    end = line_end(text, end)
    return Edit(start, end, source, (start, end), name)


def remove_assignment(found: SgNode, text: str, name: str) -> list[Edit]:
    """Takes an assignment away, and the docstring below it."""
    docstring = _docstring_of(found)
    nodes = [found] if docstring is None else [found, docstring]
    return [removal(text, node, name) for node in nodes]


def _docstring_of(assignment: SgNode) -> SgNode | None:
    following = assignment.next()
    while following is not None and following.kind() == "comment":
        following = following.next()
    if following is not None and up.is_docstring(following):
        return following
    return None


def extend_literal(
    statement: ast.AugAssign, delta: Delta, found: SgNode, name: str
) -> Edit:
    """``NAME += [...]``: more elements for the literal that upstream assigns.

    Args:
        statement: The augmented assignment; ``|=`` serves for a set.
        delta: The delta.
        found: Upstream's assignment.
        name: Qualified name of what is assigned.

    Raises:
        FaultError: One of the two is no list, tuple or set literal.
    """
    inner = found.child(0)
    literal = inner.field("right") if inner is not None else None
    operators = ast.BitOr if isinstance(statement.value, ast.Set) else ast.Add
    if (
        not isinstance(statement.value, ast.List | ast.Tuple | ast.Set)
        or not isinstance(statement.op, operators)
        or literal is None
        or literal.kind() not in _LITERALS
    ):
        raise FaultError(
            "an augmented assignment adds to a list or tuple literal with +=, to a set "
            "literal with |=, and upstream must assign such a literal; write the "
            "assignment anew",
            name,
        )
    elements = _elements(delta.expression(statement.value))
    before = [node for node in literal.children()[:-1] if node.kind() != "comment"][-1]
    start, (_, end) = up.span(before)[1], up.span(literal)
    rest = literal.text()[start - end : -1]
    if "#" in elements.rpartition("\n")[2]:
        elements = f"{elements}\n"
    elif before.kind() == "," or before.is_named():
        elements = elements.removesuffix(",") + ("," if "\n" in rest else "")
    comma = "," if before.is_named() else ""
    return Edit(start, end - 1, f"{comma}{rest} {elements}", up.span(found), name)


def _elements(source: str) -> str:
    """What stands between the brackets of a literal; a tuple may have none."""
    inner = source[1:-1].strip()
    try:
        ast.parse(f"[{inner}\n]")
    except SyntaxError:
        return source
    return inner if source[0] in "[({" else source
