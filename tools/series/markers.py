# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The markers of a delta: where they stand, and how they are imported."""

import ast
from collections.abc import Iterator

from tools.series import MARKERS
from tools.series.edits import FaultError

_ALL = (*MARKERS, "removed")
Import = ast.Import | ast.ImportFrom


def marker_name(node: ast.AST) -> str | None:
    """The edit-block marker that the node calls, or None for any other node."""
    match node:
        case ast.Call(func=ast.Name(name)) if name in MARKERS:
            return name
    return None


def is_edit_block(node: ast.stmt) -> bool:
    """Whether the statement is ``with MARKER(...):``."""
    return isinstance(node, ast.With) and any(
        marker_name(item.context_expr) for item in node.items
    )


def removed_name(node: ast.AST) -> str | None:
    """The name in ``removed("name")``, or None for any other statement."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Name("removed"),
                args=[ast.Constant(str() as name)],
                keywords=[],
            )
        ):
            return name
    return None


def marker_uses(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every marker at or below the node."""
    for child in ast.walk(node):
        if isinstance(child, ast.stmt) and removed_name(child):
            yield child.lineno, "removed"
        elif isinstance(child, ast.Call) and (name := marker_name(child)):
            yield child.lineno, name


def is_marker_import(node: ast.stmt) -> bool:
    """Whether the statement imports from ``series``, or imports it."""
    match node:
        case ast.ImportFrom(module="series", level=0):
            return True
        case ast.Import(names):
            return any(alias.name.partition(".")[0] == "series" for alias in names)
    return False


def import_faults(tree: ast.Module) -> Iterator[FaultError]:
    """Faults of how a delta imports markers: wrongly, not at all, or in vain."""
    imported = set()
    for node in ast.walk(tree):
        if not isinstance(node, Import) or not is_marker_import(node):
            continue
        names = {alias.name for alias in node.names if alias.asname is None}
        imported |= names
        renamed = len(node.names) > len(names & {*_ALL})
        if renamed or isinstance(node, ast.Import) or node not in tree.body:
            yield FaultError(
                f"line {node.lineno} is `{ast.unparse(node)}`; import markers at the "
                f"top, by their own names: from series import {', '.join(_ALL)}"
            )
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for name in sorted(imported & {*_ALL} - used):
        yield FaultError(
            f"imports the marker {name!r} and does not use it; remove the import"
        )
    missing = {name: line for line, name in marker_uses(tree) if name not in imported}
    for name, line in missing.items():
        yield FaultError(
            f"line {line} uses the marker {name!r}, which is not imported; add "
            f"`from series import {name}`"
        )
