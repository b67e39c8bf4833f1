# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Look-ups in the syntax tree of an upstream file.

A *scope* is a module or a definition. Positions are character offsets into the text.
"""

import ast
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
_BINDING = (
    "expression_statement",
    "import_statement",
    "import_from_statement",
)
_FILLERS = ("pass", "...")


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


def own_statements(block: SgNode) -> list[SgNode]:
    """The statements that stand directly in a block or module."""
    return [
        child
        for child in block.children()
        if child.is_named() and child.kind() != "comment"
    ]


def statements(scope: SgNode) -> Iterator[SgNode]:
    """Statements of a scope, also those under its ``if``, ``try`` and ``with``."""
    inner = body(scope) if scope.kind() in ("module", *_DEFINITIONS) else scope
    for child in inner.children():
        if child.kind() in _NESTING:
            yield from statements(child)
        else:
            yield child


def header_end(block: SgNode) -> int:
    """Offset of the end of the colon before a block."""
    return span(_colon(block))[1]


def _colon(block: SgNode) -> SgNode:
    return next(node for node in block.prev_all() if node.kind() == ":")


def is_one_line(block: SgNode) -> bool:
    """Whether a block starts on the line of its colon, as in ``class A: ...``."""
    return _colon(block).range().end.line == block.range().start.line


def column(block: SgNode) -> int:
    """The column in which statements of a block or module start, or would start."""
    if block.kind() == "module":
        return 0
    if not is_one_line(block):
        return block.range().start.column
    parent = block.parent()
    assert parent is not None
    return parent.range().start.column + 4


def filler(scope: SgNode) -> SgNode | None:
    """The ``pass`` or ``...`` of a definition that holds nothing else."""
    children = own_statements(body(scope))
    if children and is_docstring(children[0]):
        children = children[1:]
    if len(children) == 1 and children[0].text() in _FILLERS:
        return children[0]
    return None


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
    return [
        node
        for node in map(undecorated, statements(scope))
        if node.kind() in _DEFINITIONS and name in (None, defined_name(node))
    ]


def defined_name(node: SgNode) -> str:
    """Name of a function or class."""
    label = node.field("name")
    assert label is not None
    return label.text()


def assignments(scope: SgNode, name: str) -> list[SgNode]:
    """Statements of a scope that assign to ``name`` and to nothing else."""
    found = []
    for node in statements(scope):
        inner = node.child(0) if node.kind() == "expression_statement" else None
        if inner is not None and inner.kind() == "assignment":
            left = inner.field("left")
            if left is not None and left.text() == name:
                found.append(node)
    return found


def binding(scope: SgNode, name: str) -> SgNode | None:
    """The first statement of a scope that defines, imports or assigns a name."""
    for node in map(undecorated, statements(scope)):
        if node.kind() in _DEFINITIONS:
            bound = {defined_name(node)}
        elif node.kind() in _BINDING and name in node.text():
            bound = set(_bound_names(ast.parse(node.text())))
        else:
            continue
        if name in bound:
            return node
    return None


def _bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.alias(name, asname):
                yield asname or name.partition(".")[0]
            case ast.Name(name, ast.Store()):
                yield name


def is_docstring(node: SgNode) -> bool:
    """Whether a statement is a string and nothing else."""
    children = node.children()
    return (
        node.kind() == "expression_statement"
        and len(children) == 1
        and children[0].kind() in ("string", "concatenated_string")
    )


def enclosing_statement(node: SgNode) -> SgNode:
    """The innermost statement that contains the node: a child of a block.

    A comment between statements stands for itself.
    """
    if node.kind() == "comment" and any(
        sibling.kind().endswith(("block", "_clause")) for sibling in node.next_all()
    ):
        return node
    parent = node.parent()
    while parent is not None and parent.kind() not in ("block", "module"):
        node, parent = parent, parent.parent()
    return node


def is_whole_statement(node: SgNode) -> bool:
    """Whether the node is a statement, or the only thing in one."""
    statement = enclosing_statement(node)
    return span(node) in (span(statement), span(undecorated(statement)))
