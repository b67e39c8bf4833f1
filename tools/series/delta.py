# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The text of a delta, and the pieces that are cut out of it."""

import ast
from collections.abc import Sequence

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

    def expression(self, node: ast.expr | ast.arg) -> str:
        """Source of one expression, without parentheses around it, or parameter."""
        return ast.get_source_segment(self.text, node) or ""

    def statements(
        self, body: Sequence[ast.stmt], column: int, *, comments: bool = True
    ) -> str:
        """Source of consecutive statements.

        Args:
            body: The statements; all start in one column of the delta.
            column: Where they shall start: every line but the first is indented by
                this many columns. Lines inside a string stay as they are.
            comments: Whether the comments right above the first belong to them.
        """
        first, last = _first_line(body[0]), body[-1].end_lineno
        assert last is not None
        while comments and self._is_comment(first - 1, body[0].col_offset):
            first -= 1
        if isinstance(body[-1], Definition):
            last = self._last_comment(last, body[-1].body[0].col_offset)
        return self._joined(self._moved(first, last, body[0].col_offset, column))

    def block(self, block: ast.With, column: int) -> str:
        """Source of an edit block's body, with all comments in the block.

        A body of ``pass`` alone stands for nothing but those comments.
        """
        old = block.body[0].col_offset
        first, end = _first_line(block.body[0]), block.end_lineno
        header = block.items[-1].context_expr.end_lineno
        assert end is not None and header is not None
        while first - 1 > header and not self._code(first - 1):
            first -= 1
        last = self._last_comment(end, old)
        if len(block.body) == 1 and isinstance(block.body[0], ast.Pass):
            lines = self._moved(first, end - 1, old, column)
            return self._joined(lines + self._moved(end + 1, last, old, column))
        return self._joined(self._moved(first, last, old, column))

    def _code(self, line: int) -> str:
        """What a line holds beside a comment of its own."""
        text = self._lines[line - 1].strip()
        return "" if text.startswith("#") else text

    def _is_comment(self, line: int, column: int) -> bool:
        if line < 1 or line in self._inside_strings:
            return False
        text = self._lines[line - 1]
        return text.startswith("#", column) and not text[:column].strip()

    def _last_comment(self, line: int, column: int) -> int:
        """The last of the comment lines that follow a line, indented at least so."""
        last = line
        for number in range(line + 1, len(self._lines) + 1):
            text = self._lines[number - 1]
            if text.strip():
                if self._code(number) or text[:column].strip():
                    break
                last = number
        return last

    def _moved(self, first: int, last: int, old: int, new: int) -> list[str]:
        """Lines ``first`` to ``last``, moved from the one column to the other."""
        moved = []
        for number in range(first, last + 1):
            line = self._lines[number - 1]
            if number not in self._inside_strings:
                indent = min(old, len(line) - len(line.lstrip()))
                line = " " * new + line[indent:] if line.strip() else ""
            moved.append(line)
        return moved

    def _joined(self, lines: list[str]) -> str:
        return "\n".join(lines).strip()


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])


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


def is_type_checking(node: ast.stmt) -> bool:
    """Whether the statement is ``if TYPE_CHECKING:`` with no other branch."""
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING"), orelse=[]):
            return True
    return False
