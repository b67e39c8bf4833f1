# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Where additions go in an upstream file: each place is the end of a line."""

import itertools

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.edits import line_end


def head_end(root: SgNode, text: str) -> int:
    """The end of a module's licence comments and docstring; 0 if it has neither."""
    end, next_line = 0, 0
    for child in root.children():
        if child.kind() != "comment":
            return line_end(text, up.span(child)[1]) if up.is_docstring(child) else end
        if child.range().start.line == next_line:
            end, next_line = line_end(text, up.span(child)[1]), next_line + 1
    return end


def after_imports(root: SgNode, text: str) -> int:
    """The end of a module's first run of imports, or of its head if it has none."""
    last = None
    for child in up.own_statements(root):
        if child.kind().startswith(("import", "future_import")):
            last = child
        elif last is not None or not up.is_docstring(child):
            break
    return head_end(root, text) if last is None else line_end(text, up.span(last)[1])


def gap(scope: SgNode, text: str, place: int) -> str:
    """A blank line if a place is the end of a module's head: it stands apart."""
    if scope.kind() == "module" and 0 < place == head_end(scope, text):
        return "\n"
    return ""


def after_fields(scope: SgNode, text: str) -> int:
    """The end of a module's imports, or of the leading fields of a class."""
    if scope.kind() == "module":
        return after_imports(scope, text)
    block = up.body(scope)
    fields = list(
        itertools.takewhile(
            lambda node: node.kind() == "expression_statement",
            up.own_statements(block),
        )
    )
    return line_end(text, up.span(fields[-1])[1] if fields else up.header_end(block))


def end_of(scope: SgNode, text: str) -> int:
    """The end of a definition; of a module, the end before its main guard."""
    children = [child for child in up.body(scope).children() if child.is_named()]
    if scope.kind() == "module" and children:
        guard = children[-1]
        if guard.text().startswith("if __name__ =="):
            children.pop()
            while children and _is_right_above(children[-1], guard, text):
                guard = children.pop()
    return line_end(text, up.span(children[-1])[1]) if children else 0


def _is_right_above(comment: SgNode, node: SgNode, text: str) -> bool:
    between = text[up.span(comment)[0] : up.span(node)[0]]
    return comment.kind() == "comment" and between == f"{comment.text()}\n"
