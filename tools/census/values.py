# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What an expression is worth to the census: None, empty, a Parameter, an attribute."""

import ast
from collections.abc import Iterator

from tools.census.tree import Function, last_name

_EMPTY_SIZES = frozenset({"0", "(0,)", "[0]", "(0, 0)", "torch.Size([0])", "[]"})
_MAKERS = frozenset({"empty", "new_empty", "zeros", "new_zeros", "tensor"})
_VIEWS = frozenset(
    {"detach", "flatten", "reshape", "squeeze", "t", "unsqueeze", "view", "view_as"}
)


class Values:
    """The values that a function's expressions may have, as far as syntax tells.

    Args:
        function: The function; its locals are looked through.
    """

    def __init__(self, function: Function) -> None:
        self._locals: dict[str, list[ast.expr]] = {}
        for node in function.nodes:
            if isinstance(node, ast.Assign):
                for target, value in pairs(node.targets, node.value):
                    if isinstance(target, ast.Name):
                        self._locals.setdefault(target.id, []).append(value)

    def kind(self, value: ast.expr) -> str:
        """What writing the value does: a kind of site, or empty if it is none."""
        values = list(self._unfold(value))
        if any(isinstance(one, ast.Constant) and one.value is None for one in values):
            return "none"
        if any(self._is_empty(one) for one in values):
            return "empty"
        if any(_is_parameter(one) for one in values):
            return "fresh"
        return "alias" if self.sources(value) else ""

    def sources(self, value: ast.expr) -> set[str]:
        """Names of the attributes that the value is, or is a view of."""
        return {name for one in self._unfold(value) if (name := _source(one))}

    def _unfold(self, value: ast.expr, depth: int = 2) -> Iterator[ast.expr]:
        if isinstance(value, ast.IfExp):
            yield from self._unfold(value.body, depth)
            yield from self._unfold(value.orelse, depth)
        elif isinstance(value, ast.Name) and depth:
            for one in self._locals.get(value.id, ()):
                yield from self._unfold(one, depth - 1)
        else:
            yield value

    def _is_empty(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call):
            return False
        if _is_parameter(value):
            inner = arguments(value)[:1]
            return any(
                map(self._is_empty, (v for one in inner for v in self._unfold(one)))
            )
        name = last_name(value.func)
        sizes = [ast.unparse(one) for one in value.args]
        is_zero = len(sizes) == 1 and sizes[0] in _EMPTY_SIZES
        return (name in _MAKERS and is_zero) or name.endswith("make_empty")


def pairs(
    targets: list[ast.expr], value: ast.expr
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each single target of an assignment, with its value.

    Of a call that is unpacked, every target gets the call.
    """
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            parts = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List):
                parts = value.elts
            for one, part in zip(target.elts, parts):
                yield from pairs([one], part)
        else:
            yield target, value


def arguments(node: ast.Call) -> list[ast.expr]:
    """Arguments of a call, in the order in which they are written."""
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_parameter(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and last_name(value.func).endswith("Parameter")


def _source(value: ast.expr) -> str:
    match value:
        case ast.Call(ast.Attribute(inner, attr)) if attr in _VIEWS:
            return _source(inner)
        case ast.Attribute(inner, "data"):
            return _source(inner)
        case ast.Attribute(holder, attr) if not isinstance(holder, ast.Call):
            return attr
    return ""
