# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a call calls, and what a function is given and returns."""

import ast
from collections.abc import Iterable
from functools import cache

from tools.census.reach import referred
from tools.census.tree import Function, FunctionNode, Tree, arguments_of


def callees(tree: Tree, function: Function, func: ast.expr) -> Iterable[Function]:
    """The functions of the tree, nested ones among them, that an expression calls."""
    nested = _nested(function)
    if isinstance(func, ast.Name) and func.id in nested:
        return [nested[func.id]]
    return referred(tree, function, func)


@cache
def results(function: Function) -> list[ast.expr]:
    """The expressions that a function returns, without those of nested ones."""
    within = {
        id(node)
        for nested in _nested(function).values()
        for node in ast.walk(nested.node)
    }
    return [
        node.value
        for node in function.nodes
        if isinstance(node, ast.Return) and node.value is not None
        if id(node) not in within
    ]


@cache
def annotations(node: FunctionNode) -> dict[str, ast.expr | None]:
    """The arguments of a function, each with its annotation."""
    return {one.arg: one.annotation for one in arguments_of(node)}


def is_tensor(note: ast.expr | None) -> bool:
    """Whether an annotation names a tensor, or a collection of such."""
    return note is not None and "Tensor" in ast.unparse(note)


def root(node: ast.expr) -> str:
    """The first component of a name: ``a`` of ``a.b.c``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _nested(function: Function) -> dict[str, Function]:
    return {
        node.name: Function(function.path, function.name, node, function.owner)
        for node in ast.walk(function.node)
        if isinstance(node, FunctionNode) and node is not function.node
    }
