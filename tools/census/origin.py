# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which expressions a weight flows into, as far as syntax tells."""

import ast
from collections.abc import Iterator, Set

from tools.census import torch_names as names
from tools.census.calls import annotations, callees, results
from tools.census.flow import local_names
from tools.census.tree import Function, Tree, last_name

_HOLDERS = ("Tensor", "Module", "Parameter", "Layer", "Linear", "Model")


class Origins:
    """Looks for weights in expressions of one tree.

    Args:
        tree: The tree.
        loaded: Names of parameters.
    """

    def __init__(self, tree: Tree, loaded: Set[str]) -> None:
        self._tree = tree
        self._loaded = loaded

    def has_weights(self, function: Function, value: ast.expr) -> bool:
        """Whether a parameter, or an argument that may hold one, flows into a value.

        What is asked of a tensor, as its device or shape, does not count.
        """
        return self._flows(function, value, set())

    def _flows(self, function: Function, value: ast.expr, seen: set[int]) -> bool:
        if id(value) in seen:
            return False
        seen.add(id(value))
        match value:
            case ast.Name(name):
                return self._local(function, name, seen)
            case ast.Attribute(attr=attr) if attr in names.QUERIES:
                return False
            case ast.Attribute(attr=attr) if attr in self._loaded:
                return True
            case ast.Call(func) if _asks_only(last_name(func)):
                return False
            case ast.Call(func) if self._called(function, func, seen):
                return True
        return any(self._flows(function, one, seen) for one in _operands(value))

    def _local(self, function: Function, name: str, seen: set[int]) -> bool:
        if _may_hold_weights(function, name):
            return True
        known = local_names(function.node).of(name)
        return any(self._flows(function, one.value, seen) for one in known)

    def _called(self, function: Function, func: ast.expr, seen: set[int]) -> bool:
        """Whether a function returns weights of its own, not only what it is given."""
        return any(
            self._flows(one, result, seen)
            for one in callees(self._tree, function, func)
            for result in results(one)
            if not isinstance(result, ast.Name)
            or result.id not in annotations(one.node)
        )


def _asks_only(name: str) -> bool:
    """Whether a method or function asks a tensor only for what it is like."""
    is_like = name.startswith("new_") or name.endswith("_like")
    return is_like or name in names.QUERIES


def _may_hold_weights(function: Function, name: str) -> bool:
    given = annotations(function.node)
    if name not in given or name in ("self", "cls"):
        return False
    note = given[name]
    return note is None or any(one in ast.unparse(note) for one in _HOLDERS)


def _operands(value: ast.AST) -> Iterator[ast.expr]:
    """The expressions in one, but for those that say where and of what type it is."""
    for child in ast.iter_child_nodes(value):
        match child:
            case ast.keyword(arg, inner):
                if arg not in names.QUERIES:
                    yield inner
            case ast.comprehension(iter=inner):
                yield inner
            case ast.expr():
                yield child
