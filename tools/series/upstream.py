# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Look-ups in the syntax tree of an upstream file.

Positions are character offsets into the file's text.
"""

from collections.abc import Iterator

from ast_grep_py import SgNode, SgRoot

_DEFINITIONS = ("class_definition", "function_definition")
_NESTING = (
    "if_statement",
    "elif_clause",
    "else_clause",
    "try_statement",
    "except_clause",
    "finally_clause",
    "with_statement",
    "block",
)


def span(node: SgNode) -> tuple[int, int]:
    """Start and end offset of a node."""
    place = node.range()
    return place.start.index, place.end.index


def parse(text: str) -> SgNode:
    """Root node of a Python source."""
    return SgRoot(text, "python").root()


def body(scope: SgNode) -> SgNode:
    """The block of a definition; of a module, the module itself."""
    if scope.kind() == "module":
        return scope
    block = scope.field("body")
    assert block is not None, scope.kind()
    return block


def statements(scope: SgNode) -> Iterator[SgNode]:
    """Statements of a scope, also those under its ``if``, ``try`` and ``with``."""
    for child in body(scope).children() if _has_body(scope) else scope.children():
        if child.kind() in _NESTING:
            yield from statements(child)
        else:
            yield child


def _has_body(scope: SgNode) -> bool:
    return scope.kind() in ("module", *_DEFINITIONS)


def undecorated(node: SgNode) -> SgNode:
    """The definition inside a decorated definition; any other node itself."""
    if node.kind() == "decorated_definition":
        inner = node.field("definition")
        assert inner is not None
        return inner
    return node


def decorated(node: SgNode) -> SgNode:
    """A definition together with its decorators."""
    parent = node.parent()
    if parent is not None and parent.kind() == "decorated_definition":
        return parent
    return node


def decorators(node: SgNode) -> list[str]:
    """Decorators of a definition, as written, without the ``@``."""
    return [
        child.text().removeprefix("@").strip()
        for child in decorated(node).children()
        if child.kind() == "decorator"
    ]


def definitions(scope: SgNode, name: str | None = None) -> list[SgNode]:
    """Functions and classes of a scope, all of them or those of one name."""
    found = []
    for node in map(undecorated, statements(scope)):
        if node.kind() in _DEFINITIONS:
            label = node.field("name")
            assert label is not None
            if name is None or label.text() == name:
                found.append(node)
    return found


def assignments(scope: SgNode, name: str) -> list[SgNode]:
    """Statements of a scope that assign to ``name``."""
    found = []
    for node in statements(scope):
        inner = node.child(0) if node.kind() == "expression_statement" else None
        if inner is not None and inner.kind() == "assignment":
            left = inner.field("left")
            if left is not None and left.text() == name:
                found.append(node)
    return found


def is_docstring(node: SgNode) -> bool:
    """Whether a statement is a string and nothing else."""
    children = node.children()
    return (
        node.kind() == "expression_statement"
        and len(children) == 1
        and children[0].kind() in ("string", "concatenated_string")
    )


def enclosing_statement(node: SgNode) -> SgNode:
    """The innermost statement that contains the node: a child of a block."""
    parent = node.parent()
    while parent is not None and parent.kind() not in ("block", "module"):
        node, parent = parent, parent.parent()
    return node


def is_whole_statement(node: SgNode) -> bool:
    """Whether the node is a statement, or the only thing in one."""
    return span(enclosing_statement(node)) == span(node)
