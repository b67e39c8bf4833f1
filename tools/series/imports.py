# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Imports that a delta adds to an upstream file."""

import ast

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.delta import Delta, is_type_checking
from tools.series.edits import Edit, FaultError, added_lines, line_end
from tools.series.markers import Import
from tools.series.places import after_imports, gap, head_end

_Key = tuple[str, str, str | None]


def import_edits(
    statement: Import, delta: Delta, root: SgNode, text: str
) -> list[Edit]:
    """Edits that add those names of an import that upstream does not import yet.

    They go after upstream's first run of imports; sorting them is left to the
    formatter.

    Args:
        statement: The delta's import.
        delta: The delta.
        root: Root of upstream's file.
        text: Upstream's source.
    """
    known = _imported(ast.parse(text).body)
    line = _missing(statement, delta, known)
    if not line:
        return []
    is_future = isinstance(statement, ast.ImportFrom) and (
        statement.module == "__future__"
    )
    place = head_end(root, text) if is_future else after_imports(root, text)
    return [added_lines(place, gap(root, text, place) + line, "")]


def type_checking_edits(
    statements: list[ast.stmt], delta: Delta, root: SgNode, text: str
) -> list[Edit]:
    """The same for imports under ``if TYPE_CHECKING:``; they go into upstream's.

    Raises:
        FaultError: Something else than an import stands there.
    """
    body = ast.parse(text).body
    known = _imported(body)
    for block in filter(is_type_checking, body):
        assert isinstance(block, ast.If)
        known |= _imported(block.body)
    block_node = _type_checking_block(root)
    column = 4 if block_node is None else up.column(block_node)
    lines = []
    for statement in statements:
        if not isinstance(statement, Import):
            raise FaultError(
                f"line {statement.lineno}: only imports may stand under TYPE_CHECKING"
            )
        lines.append(_missing(statement, delta, known, column))
    code = f"\n{' ' * column}".join(filter(None, lines))
    if not code:
        return []
    if block_node is None:
        code = f"\nif TYPE_CHECKING:\n    {code}"
        return [added_lines(after_imports(root, text), code, "")]
    return [added_lines(line_end(text, up.span(block_node)[1]), code, "", column)]


def _imported(body: list[ast.stmt]) -> set[_Key]:
    """Every name that statements import, as they stand and not in branches."""
    return {
        _key(statement, alias)
        for statement in body
        if isinstance(statement, Import)
        for alias in statement.names
    }


def _key(statement: Import, alias: ast.alias) -> _Key:
    return _module(statement), alias.name, alias.asname


def _module(statement: Import) -> str:
    if isinstance(statement, ast.Import):
        return ""
    return "." * statement.level + (statement.module or "")


def _missing(statement: Import, delta: Delta, known: set[_Key], column: int = 0) -> str:
    """Source of an import without the names that are known; whole, with its comment."""
    names = [alias for alias in statement.names if _key(statement, alias) not in known]
    if names == statement.names:
        return delta.statements([statement], column, comments=False)
    if not names:
        return ""
    listed = ", ".join(map(ast.unparse, names))
    if isinstance(statement, ast.Import):
        return f"import {listed}"
    return f"from {_module(statement)} import {listed}"


def _type_checking_block(root: SgNode) -> SgNode | None:
    for child in up.own_statements(root):
        condition = child.field("condition") if child.kind() == "if_statement" else None
        if condition is not None and condition.text() == "TYPE_CHECKING":
            return child.field("consequence")
    return None
