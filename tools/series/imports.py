# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Imports that a delta adds to an upstream file."""

import ast

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.edits import Edit, addition, line_end

Import = ast.Import | ast.ImportFrom


def import_edits(
    statement: Import, root: SgNode, text: str, type_checking: bool
) -> list[Edit]:
    """Edits that add those names of an import that upstream does not import yet.

    They go after upstream's first run of imports, or into its ``if TYPE_CHECKING:``
    block; sorting them is left to the formatter.

    Args:
        statement: The delta's import.
        root: Root of upstream's file.
        text: Upstream's source.
        type_checking: Whether it stands under ``if TYPE_CHECKING:``.
    """
    known = _imported(ast.parse(text).body)
    names = [alias for alias in statement.names if _key(statement, alias) not in known]
    if not names:
        return []
    line = _source(statement, names)
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return [addition(_before_imports(root), f"{line}\n", "")]
    if not type_checking:
        return [addition(after_imports(root, text), f"\n{line}", "")]
    block = _type_checking_block(root)
    if block is None:
        code = f"\n\nif TYPE_CHECKING:\n    {line}\n"
        return [addition(after_imports(root, text), code, "")]
    return [addition(line_end(text, up.span(block)[1]), f"\n    {line}", "")]


def _imported(body: list[ast.stmt]) -> set[tuple[str, str, str | None]]:
    """Every name that a module imports at its top level."""
    known = set()
    for statement in body:
        if isinstance(statement, Import):
            known |= {_key(statement, alias) for alias in statement.names}
        elif isinstance(statement, ast.If):
            known |= _imported(statement.body)
    return known


def _key(statement: Import, alias: ast.alias) -> tuple[str, str, str | None]:
    return _module(statement), alias.name, alias.asname


def _module(statement: Import) -> str:
    if isinstance(statement, ast.Import):
        return ""
    return "." * statement.level + (statement.module or "")


def _source(statement: Import, names: list[ast.alias]) -> str:
    listed = ", ".join(map(ast.unparse, names))
    if isinstance(statement, ast.Import):
        return f"import {listed}"
    return f"from {_module(statement)} import {listed}"


def _leading(root: SgNode) -> list[SgNode]:
    """The docstring and imports at the head of a module; comments may stand between."""
    run: list[SgNode] = []
    for child in root.children():
        kind = child.kind()
        if kind == "comment":
            continue
        if not kind.startswith(("import", "future_import")) and not (
            not run and up.is_docstring(child)
        ):
            break
        run.append(child)
    return run


def after_imports(root: SgNode, text: str) -> int:
    """Offset of the end of a module's first run of imports."""
    run = _leading(root) or [
        child for child in root.children()[:2] if child.kind() == "comment"
    ]
    return line_end(text, up.span(run[-1])[1]) if run else 0


def _before_imports(root: SgNode) -> int:
    first = next(
        child
        for child in root.children()
        if child.kind() != "comment" and not up.is_docstring(child)
    )
    return up.span(first)[0]


def _type_checking_block(root: SgNode) -> SgNode | None:
    for child in root.children():
        condition = child.field("condition") if child.kind() == "if_statement" else None
        if condition is not None and condition.text() == "TYPE_CHECKING":
            return child.field("consequence")
    return None
