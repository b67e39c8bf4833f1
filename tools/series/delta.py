# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The text of a delta, and the pieces that are cut out of it."""

import ast
from collections.abc import Iterator, Sequence

from tools.series import MARKERS

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Delta:
    """A parsed delta.

    Args:
        text: The delta's source.

    Raises:
        SyntaxError: The text is not Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.split("\n")
        self._inside_strings = {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, ast.JoinedStr)
            or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
            for line in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        }

    def expression(self, node: ast.expr) -> str:
        """Source of one expression."""
        return ast.get_source_segment(self.text, node) or ""

    def between(self, first: ast.expr | ast.arg, last: ast.expr | ast.arg) -> str:
        """Source from the end of one node to the end of a later one."""
        return self.text[self._end(first) : self._end(last)]

    def statements(self, body: Sequence[ast.stmt], column: int) -> str:
        """Source of consecutive statements, with the comments right above them.

        Args:
            body: The statements; all start in one column of the delta.
            column: Where they shall start: every line but the first is indented by
                this many columns. Lines inside a string stay as they are.
        """
        first = self._first_line(body[0])
        while first > 1 and self._is_comment(first - 1, body[0].col_offset):
            first -= 1
        return self._cut(
            first, body[-1].end_lineno or first, body[0].col_offset, column
        )

    def block(self, block: ast.With, column: int) -> str:
        """Source of an edit block's body, with all comments in the block.

        A body of ``pass`` alone stands for nothing.
        """
        last = block.end_lineno or block.lineno
        text = self.statements(block.body, column)
        if isinstance(block.body[0], ast.Pass) and len(block.body) == 1:
            text = text.rpartition("pass")[0].rstrip()
        trailing = last
        for line in range(last + 1, len(self._lines) + 1):
            content = self._lines[line - 1].strip()
            if self._is_comment(line, block.body[0].col_offset):
                trailing = line
            elif content:
                break
        if trailing > last:
            comments = self._cut(
                last + 1, trailing, block.body[0].col_offset, column
            ).lstrip("\n ")
            text = f"{text}\n{' ' * column}{comments}" if text else comments
        return text

    def _end(self, node: ast.expr | ast.arg) -> int:
        """Character offset of a node's end."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        before = self._lines[: node.end_lineno - 1]
        last = self._lines[node.end_lineno - 1].encode()[: node.end_col_offset]
        return sum(len(line) + 1 for line in before) + len(last.decode())

    def _first_line(self, node: ast.stmt) -> int:
        decorators = getattr(node, "decorator_list", [])
        return min([node.lineno, *(item.lineno for item in decorators)])

    def _is_comment(self, line: int, column: int) -> bool:
        text = self._lines[line - 1]
        return (
            text.lstrip().startswith("#") and len(text) - len(text.lstrip()) == column
        )

    def _cut(self, first: int, last: int, old_column: int, new_column: int) -> str:
        """Lines ``first`` to ``last``, moved from the one column to the other."""
        moved = []
        for number in range(first, last + 1):
            line = self._lines[number - 1]
            if number in self._inside_strings:
                moved.append(line)
            elif number == first:
                moved.append(line[old_column:])
            else:
                moved.append(
                    " " * new_column + line[old_column:] if line.strip() else ""
                )
        return "\n".join(moved)


def is_marker(node: ast.AST) -> bool:
    """Whether the node is a call of one of the three edit-block markers."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in MARKERS
    )


def is_edit_block(node: ast.stmt) -> bool:
    """Whether the statement is ``with MARKER(...):``."""
    return isinstance(node, ast.With) and any(
        is_marker(item.context_expr) for item in node.items
    )


def removed_name(node: ast.stmt) -> str | None:
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


def docstring_node(body: list[ast.stmt]) -> ast.Expr | None:
    """The docstring statement at the start of a body."""
    match body:
        case [ast.Expr(ast.Constant(str())) as node, *_]:
            return node
    return None


def assigned_name(node: ast.stmt) -> str | None:
    """The name that a plain, annotated or augmented assignment binds."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(name)])
            | ast.AnnAssign(target=ast.Name(name))
            | ast.AugAssign(target=ast.Name(name))
        ):
            return name
    return None


def marker_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Every call of an edit-block marker at or below the node."""
    for child in ast.walk(node):
        if is_marker(child):
            assert isinstance(child, ast.Call)
            yield child


def is_type_checking(node: ast.stmt) -> bool:
    """Whether the statement is ``if TYPE_CHECKING:`` with no other branch."""
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING"), orelse=[]):
            return True
    return False
