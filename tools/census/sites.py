# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The statements of a function that drop, rename, empty or move a layer's tensor.

=========== ===========================================================================
Kind        Statement (L is a layer, n a name, v a value)
=========== ===========================================================================
``delete``  ``del L.n``, ``delattr(L, n)``, ``del L._parameters[n]``, its ``.pop(n)``
``none``    None written to L.n; an argument set to None and returned
``empty``   an empty tensor written to L.n, or to ``v.data``
``fresh``   a new Parameter written to L.n
``alias``   another tensor written to L.n: of another name, or from elsewhere
``rebind``  ``v.data = w``
``set``     ``v.set_(w)``
=========== ===========================================================================

A write to L.n is ``L.n = v``, ``setattr(L, n, v)``, ``L.register_parameter(n, v)``,
``L.register_buffer(n, v)`` or ``L._parameters[n] = v``. ``replace_parameter(L, n, v)``
keeps the object, and counts only with None, an empty tensor or another attribute as v.
"""

import ast
from collections.abc import Set
from dataclasses import dataclass

import regex

from tools.census.tree import Function, arguments_of, last_name
from tools.census.values import Values, arguments, pairs

KINDS = ("delete", "none", "empty", "fresh", "alias", "rebind", "set")
_REGISTRIES = ("_parameters", "_buffers")
_LOADED = (
    regex.compile(r'register_parameter\(\s*"(\w+)"'),
    regex.compile(r"self\.(\w+) = [\w.]*Parameter\("),
)


@dataclass(frozen=True)
class Site:
    """One such statement.

    Attributes:
        path: Its file, relative to the repository's root.
        function: Qualified name of its function.
        line: Its line, counted from 1.
        kind: One of ``KINDS``.
        statement: Its text, as ``ast.unparse`` writes it.
    """

    path: str
    function: str
    line: int
    kind: str
    statement: str


def parameter_names(text: str) -> set[str]:
    """Names that a file gives to parameters."""
    return {name for pattern in _LOADED for name in pattern.findall(text)}


def find_sites(function: Function, is_module: bool, loaded: Set[str]) -> list[Site]:
    """The sites of one function, in order of line.

    Args:
        function: The function.
        is_module: Whether its ``self`` is an ``nn.Module``, and so a layer.
        loaded: Names of parameters.
    """
    finder = _Finder(function, is_module, loaded)
    sites = [
        Site(function.path, function.name, node.lineno, kind, ast.unparse(node))
        for node in function.nodes
        if isinstance(node, ast.Delete | ast.Assign | ast.AnnAssign | ast.Call)
        and (kind := finder.kind(node))
    ]
    return sorted(sites, key=lambda site: site.line)


class _Finder:
    def __init__(self, function: Function, is_module: bool, loaded: Set[str]) -> None:
        self._is_module = is_module
        self._loaded = loaded
        self._values = Values(function)
        self._passed_on = _arguments_returned(function)

    def kind(self, node: ast.AST) -> str:
        match node:
            case ast.Delete(targets):
                return "delete" if any(map(self._is_slot, targets)) else ""
            case ast.Assign(targets, value):
                kinds = (self._assigned(*pair) for pair in pairs(targets, value))
                return next(filter(None, kinds), "")
            case ast.AnnAssign(target, value=ast.expr() as value):
                return self._assigned(target, value)
            case ast.Call():
                return self._called(node)
        return ""

    def _assigned(self, target: ast.expr, value: ast.expr) -> str:
        kind = self._values.kind(value)
        match target:
            case ast.Attribute(attr="data"):
                return "empty" if kind == "empty" else "rebind"
            case ast.Attribute(attr=name) if self._is_slot(target):
                if name in self._loaded or kind == "fresh":
                    return kind or "alias"
                is_renamed = not self._loaded.isdisjoint(self._values.sources(value))
                return "alias" if kind == "alias" and is_renamed else ""
            case ast.Subscript() if self._is_slot(target):
                return kind or "alias"
            case ast.Name(name) if name in self._passed_on:
                return "none" if kind == "none" else ""
        return ""

    def _called(self, call: ast.Call) -> str:
        given = arguments(call)
        match last_name(call.func), given:
            case "delattr", [holder, _]:
                return "delete" if self._is_layer(holder) else ""
            case "setattr", [holder, name, value] if self._is_layer(holder):
                return self._written(name, value, "alias")
            case "replace_parameter", [_, name, value]:
                return self._replaced(name, value)
        if not isinstance(call.func, ast.Attribute):
            return ""
        match call.func.attr, given:
            case "set_", _:
                return "set"
            case "pop", _ if last_name(call.func.value) in _REGISTRIES:
                return "delete"
            case "__delattr__", _:
                return "delete"
            case "register_parameter", [_, value]:
                return self._values.kind(value) or "fresh"
            case "register_buffer", [name, value, *_]:
                return self._written(name, value, "alias")
        return ""

    def _written(self, name: ast.expr, value: ast.expr, default: str) -> str:
        kind = self._values.kind(value)
        is_known = not isinstance(name, ast.Constant) or name.value in self._loaded
        return kind or default if is_known or kind in ("fresh", "alias") else ""

    def _replaced(self, name: ast.expr, value: ast.expr) -> str:
        kind = self._values.kind(value)
        sources = self._values.sources(value) & self._loaded
        own = {name.value} if isinstance(name, ast.Constant) else sources
        return kind if kind in ("none", "empty") or (kind and sources - own) else ""

    def _is_slot(self, target: ast.expr) -> bool:
        match target:
            case ast.Attribute(holder) | ast.Subscript(ast.Attribute(holder)):
                is_item = isinstance(target, ast.Subscript)
                named = last_name(target) in _REGISTRIES
                return self._is_layer(holder) and (named or not is_item)
        return False

    def _is_layer(self, node: ast.expr) -> bool:
        is_self = isinstance(node, ast.Name) and node.id in ("self", "cls")
        return self._is_module or not is_self


def _arguments_returned(function: Function) -> set[str]:
    """Names of arguments that the function returns in a tuple."""
    names = {one.arg for one in arguments_of(function.node)}
    return names & {
        element.id
        for node in function.nodes
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        for element in node.value.elts
        if isinstance(element, ast.Name)
    }
