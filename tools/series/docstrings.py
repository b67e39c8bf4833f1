# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Paragraphs that a delta adds to an upstream docstring."""

import ast
import inspect

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.delta import Delta
from tools.series.edits import Edit, FaultError, added_lines, line_end, replacement
from tools.series.places import head_end

_QUOTES = '"""'


def docstring_edit(
    docstring: ast.Expr, delta: Delta, scope: SgNode, text: str, name: str
) -> Edit:
    """The edit that appends a docstring's text to upstream's, or adds it.

    Args:
        docstring: The docstring's statement.
        delta: The delta that holds it.
        scope: Upstream's module or definition.
        text: Upstream's source.
        name: Qualified name of the definition.

    Raises:
        FaultError: The two differ in their quotes or prefix.
    """
    block = up.body(scope)
    first = next(iter(up.own_statements(block)), None)
    prefix, ours = _parts(delta.expression(docstring.value), name)
    column = up.column(block)
    indent = "\n" + " " * column
    ours = inspect.cleandoc(ours).replace("\n", indent).replace(f"{indent}\n", "\n\n")
    if first is not None and up.is_docstring(first):
        their_prefix, theirs = _parts(first.text(), name)
        if prefix != their_prefix:
            raise FaultError(
                f"the docstring's prefix {prefix!r} differs from upstream's "
                f"{their_prefix!r}; write it with upstream's",
                name,
            )
        joined = f"{theirs.rstrip()}\n{indent}{ours}{indent}"
        return replacement(first, f"{prefix}{_QUOTES}{joined}{_QUOTES}", name)
    closing = f"{indent}{_QUOTES}" if "\n" in ours else _QUOTES
    lines = f"{prefix}{_QUOTES}{ours}{closing}"
    if scope.kind() == "module":
        return added_lines(head_end(scope, text), f"{lines}\n", name)
    return added_lines(line_end(text, up.header_end(block)), lines, name, column)


def _parts(source: str, name: str) -> tuple[str, str]:
    """Prefix and text of a docstring, as written."""
    prefix, quotes, rest = source.partition(_QUOTES)
    if not quotes or prefix.strip("rRuU") or not rest.endswith(_QUOTES):
        raise FaultError(
            f"the docstring {source[:20]!r} is not written in triple double quotes, "
            "here or upstream: nothing can be appended to it",
            name,
        )
    return prefix.lower(), rest.removesuffix(_QUOTES)
