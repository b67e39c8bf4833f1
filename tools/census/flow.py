# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which assignments of a function's locals may be the one that a line reads."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tools.census.tree import FunctionNode

Block = tuple[tuple[int, str], ...]
"""Where a statement stands: each statement around it, and in which of its bodies."""


class Binding(NamedTuple):
    """One assignment to a local.

    Attributes:
        value: What is assigned.
        part: Index of the item of it that the local gets; -1 for the whole.
        line: The last line of the assignment.
        block: Where it stands.
    """

    value: ast.expr
    part: int
    line: int
    block: Block


class Locals:
    """The locals of one function.

    Args:
        node: The function's syntax; what is nested in it is part of it.
    """

    def __init__(self, node: FunctionNode) -> None:
        self._blocks: dict[int, Block] = {}
        self._bindings: dict[str, list[Binding]] = defaultdict(list)
        for statement, block in _statements(node, ()):
            for line in range(statement.lineno, _last_line(statement) + 1):
                self._blocks[line] = block
            for target, value, part in assigned(statement):
                if isinstance(target, ast.Name):
                    end = statement.end_lineno or statement.lineno
                    self._bindings[target.id].append(Binding(value, part, end, block))

    def of(self, name: str) -> list[Binding]:
        """Every assignment to a local."""
        return self._bindings.get(name, [])

    def reaching(self, name: str, line: int) -> list[Binding]:
        """The assignments to a local that a line may read; none of an argument.

        One in a block around the line hides those before it.
        """
        found: list[Binding] = []
        block = self._blocks.get(line, ())
        for one in reversed(self.of(name)):
            if one.line < line:
                found.append(one)
                if block[: len(one.block)] == one.block:
                    break
        return found


@cache
def local_names(node: FunctionNode) -> Locals:
    """The locals of a function."""
    return Locals(node)


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Each single target of an assignment, its value, and the part of it that it gets.

    Args:
        node: Any node; one that is no assignment has no target.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value, -1


def _unpacked(
    target: ast.expr, value: ast.expr, part: int = -1
) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value, part
        return
    items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    for index, one in enumerate(target.elts):
        if index < len(items):
            yield from _unpacked(one, items[index])
        else:
            yield from _unpacked(one, value, index)


def _statements(node: ast.AST, block: Block) -> Iterator[tuple[ast.stmt, Block]]:
    for name, children in ast.iter_fields(node):
        for child in children if isinstance(children, list) else ():
            inner = (*block, (id(node), name))
            if isinstance(child, ast.stmt):
                yield child, inner
                yield from _statements(child, inner)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                yield from _statements(child, inner)


def _last_line(statement: ast.stmt) -> int:
    """The last line of a simple statement, or of the head of another."""
    body = getattr(statement, "body", None)
    if body:
        return max(statement.lineno, body[0].lineno - 1)
    return statement.end_lineno or statement.lineno
