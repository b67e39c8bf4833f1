# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which expressions are new tensors, as far as syntax tells.

A call makes one if it is a function of torch that does; if it is a function of the tree
whose annotation, or what it returns, says so; or if it is any other and is given a
tensor. An attribute is a tensor if a parameter has its name. An object or collection
that is given a new tensor counts as one; a new Parameter does not: it is registered.
"""

import ast
import builtins
from collections.abc import Iterable, Set
from enum import IntEnum

from tools.census import torch_names as names
from tools.census.calls import annotations, callees, is_tensor, results, root
from tools.census.flow import Binding, local_names
from tools.census.tree import Function, Tree, last_name
from tools.census.values import arguments


class Kind(IntEnum):
    """What an expression is; of several, the greatest counts."""

    OTHER = 0
    """No tensor, or unknown."""
    HELD = 1
    """A tensor that was there before, or a view of one."""
    FRESH = 2
    """A new tensor, or what holds one."""


class Tensors:
    """Tells new tensors from others in one tree.

    Args:
        tree: The tree.
        loaded: Names of parameters.
    """

    def __init__(self, tree: Tree, loaded: Set[str]) -> None:
        self._tree = tree
        self._loaded = loaded
        self._known: dict[tuple[int, int], Kind] = {}

    def kind(self, function: Function, value: ast.expr, part: int = -1) -> Kind:
        """What an expression of a function is.

        Args:
            function: The function.
            value: The expression.
            part: Index of the item that is unpacked from it; -1 for the whole.
        """
        place = id(value), part
        if place not in self._known:
            self._known[place] = Kind.OTHER  # While it is looked at: it may recur.
            self._known[place] = self._kind(function, value, part)
        return self._known[place]

    def _kind(self, function: Function, value: ast.expr, part: int) -> Kind:
        match value:
            case ast.Name(name):
                return self._local(function, name, value.lineno, part)
            case ast.Call():
                return self._call(function, value, part)
            case ast.Attribute(inner, attr) if attr in names.VIEWS:
                return self.kind(function, inner)
            case ast.Attribute(_, attr):
                return Kind(attr in self._loaded)
            case ast.BinOp(left, _, right):
                return self._computed(function, [left, right])
            case ast.UnaryOp(ast.USub() | ast.Invert(), operand):
                return self._computed(function, [operand])
            case ast.Tuple(items) | ast.List(items) if 0 <= part < len(items):
                return self.kind(function, items[part])
        return self._greatest(function, _contents(value), part)

    def _greatest(
        self, function: Function, values: Iterable[ast.expr], part: int = -1
    ) -> Kind:
        kinds = (self.kind(function, one, part) for one in values)
        return max(kinds, default=Kind.OTHER)

    def _computed(self, function: Function, values: Iterable[ast.expr]) -> Kind:
        return Kind.FRESH if self._greatest(function, values) else Kind.OTHER

    def _local(self, function: Function, name: str, line: int, part: int) -> Kind:
        reaching = local_names(function.node).reaching(name, line)
        if not reaching:
            return Kind(is_tensor(annotations(function.node).get(name)))
        return max(self._bound(function, one, part) for one in reaching)

    def _bound(self, function: Function, binding: Binding, part: int) -> Kind:
        index = binding.part if binding.part >= 0 else part
        return self.kind(function, binding.value, index)

    def _call(self, function: Function, call: ast.Call, part: int) -> Kind:
        name = last_name(call.func)
        if name in names.KEEPERS or name.endswith("Parameter"):
            return Kind.HELD
        if name == "getattr":
            return Kind(self._may_be_parameter(call.args[1]))
        if root(call.func) in names.TORCH:
            return Kind.FRESH if _makes_tensor(call.func, name) else Kind.OTHER
        if isinstance(call.func, ast.Attribute):
            inner = self.kind(function, call.func.value)
            if inner and (name in names.VIEWS or name.endswith("_")):
                return inner
            if name in names.MAKERS or (inner and name not in names.QUERIES):
                return Kind.FRESH
        return self._result(function, call, part)

    def _may_be_parameter(self, name: ast.expr) -> bool:
        return not isinstance(name, ast.Constant) or name.value in self._loaded

    def _result(self, function: Function, call: ast.Call, part: int) -> Kind:
        name = last_name(call.func)
        if name.lstrip("_")[:1].isupper():
            given = self._greatest(function, arguments(call))
            return given if given is Kind.FRESH else Kind.OTHER
        known = list(callees(self._tree, function, call.func))
        if known:
            return max(self._returned(one, part) for one in known)
        is_plain = hasattr(builtins, name) or root(call.func) in ("self", "cls")
        return Kind.OTHER if is_plain else self._computed(function, arguments(call))

    def _returned(self, function: Function, part: int) -> Kind:
        kind = self._greatest(function, results(function), part)
        note = _item(function.node.returns, part)
        if note is None:
            return kind
        if not is_tensor(note):
            return Kind.OTHER
        return kind or Kind.FRESH


def _contents(value: ast.expr) -> list[ast.expr]:
    """The expressions that an expression may be, or that it is a collection of."""
    match value:
        case ast.Subscript(inner) | ast.Starred(inner) | ast.NamedExpr(value=inner):
            return [inner]
        case ast.IfExp(_, one, other):
            return [one, other]
        case ast.BoolOp(values=items) | ast.Dict(values=items):
            return items
        case ast.Tuple(items) | ast.List(items):
            return items
        case ast.ListComp(item) | ast.GeneratorExp(item) | ast.DictComp(value=item):
            return [item]
    return []


def _item(note: ast.expr | None, part: int) -> ast.expr | None:
    """The annotation of an item of what is annotated."""
    match note:
        case ast.Subscript(ast.Name("tuple"), ast.Tuple(items)) if part >= 0:
            return items[part] if part < len(items) else None
    return note


def _makes_tensor(func: ast.expr, name: str) -> bool:
    """Whether a call of something of torch makes a tensor."""
    parts = {one.attr for one in ast.walk(func) if isinstance(one, ast.Attribute)}
    if name[:1].isupper() or name.startswith(names.QUESTIONS):
        return False
    return parts.isdisjoint(names.NO_TENSORS)
