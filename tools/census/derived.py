# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The statements that keep a new tensor which is no parameter.

=========== ===========================================================================
Kind        Statement
=========== ===========================================================================
``derived`` a new tensor is written to an attribute or buffer, or given to a quant
            config; in a function that runs in a load or after it, or in a constructor
            that such a function calls
``lazy``    in any other function that looks whether an attribute is there: a new tensor
            is written to it, which comes of weights or arguments, or whose object is
            made in a load. Also what a function returns that a decorator caches
=========== ===========================================================================

No site is what a function of the series gives (`torch_names.KEEPERS`), an attribute
that an experts class names in ``kept_constants``, or what is written into a tensor.
"""

import ast
from collections.abc import Iterator, Set

from tools.census.flow import assigned
from tools.census.origin import Origins
from tools.census.sites import Site
from tools.census.tensors import Kind, Tensors
from tools.census.tree import Class, Function, Tree, last_name
from tools.census.values import arguments

KINDS = ("derived", "lazy")
_CONFIGS = ("quant_config", "QuantConfig", "QuantDesc")
_EXPERTS = "FusedMoEExperts"
_INIT = "__init__"

Write = tuple[str, ast.expr, int]
"""The attribute that is written, the value, and the part of it that is."""


def find_derived(
    tree: Tree, functions: list[Function], loaded: Set[str]
) -> Iterator[Site]:
    """The sites of a tree.

    Args:
        tree: The tree.
        functions: The functions that run in a load or after it.
        loaded: Names of parameters.
    """
    finder = _Finder(tree, loaded)
    walked = {id(item): item for item in functions}
    made = {id(owner): owner for owner in _made_classes(tree, functions)}
    for owner in made.values():
        if _INIT in owner.methods:
            walked[id(owner.methods[_INIT])] = owner.methods[_INIT]
    for item in walked.values():
        yield from finder.derived(item)
    for item in tree.functions():
        if id(item) not in walked and item.node.name != _INIT:
            yield from finder.lazy(item, is_made=id(item.owner) in made)


class _Finder:
    def __init__(self, tree: Tree, loaded: Set[str]) -> None:
        self._tree = tree
        self._loaded = loaded
        self._tensors = Tensors(tree, loaded)
        self._origins = Origins(tree, loaded)

    def derived(self, function: Function) -> list[Site]:
        kept = _kept_constants(self._tree, function)
        found = {
            node: None
            for node, (name, value, part) in _writes(function, self._loaded)
            if name not in kept
            and self._tensors.kind(function, value, part) is Kind.FRESH
        }
        return [_site(function, node, "derived") for node in found]

    def lazy(self, function: Function, is_made: bool) -> list[Site]:
        found = {
            node: None
            for node, (_, value, part) in _cached(function, self._loaded)
            if self._tensors.kind(function, value, part) is Kind.FRESH
            and (is_made or self._origins.has_weights(function, value))
        }
        return [_site(function, node, "lazy") for node in found]


def _site(function: Function, node: ast.AST, kind: str) -> Site:
    assert isinstance(node, ast.stmt | ast.expr)
    text = ast.unparse(node)
    return Site(function.path, function.name, node.lineno, kind, text)


def _made_classes(tree: Tree, functions: list[Function]) -> list[Class]:
    """The classes of the objects that the functions make, modules left out.

    Those of experts count all: which one it is comes as an argument.
    """
    classes = {
        id(item): item
        for function in functions
        for node in function.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if isinstance(item := tree.lookup(function.path, node.func.id), Class)
        and not tree.is_module(item)
    }
    made = [one for item in classes.values() for one in (item, *tree.ancestors(item))]
    return made + [one for item in tree.named(_EXPERTS) for one in tree.hierarchy(item)]


def _kept_constants(tree: Tree, function: Function) -> set[str]:
    owners = tree.hierarchy(function.owner) if function.owner else []
    return {name for item in owners for name in item.kept_constants}


def _writes(function: Function, loaded: Set[str]) -> Iterator[tuple[ast.AST, Write]]:
    for node in function.nodes:
        for target, value, part in assigned(node):
            if name := _slot(target, loaded):
                yield node, (name, value, part)
        match node:
            case ast.Call(ast.Name("setattr"), [_, written, value]):
                yield node, (_text(written), value, -1)
            case ast.Call(ast.Attribute(attr="register_buffer"), [written, value, *_]):
                yield node, (_text(written), value, -1)
            case ast.Call(func) if _makes_config(func):
                yield from ((node, ("", one, -1)) for one in arguments(node))


def _cached(function: Function, loaded: Set[str]) -> Iterator[tuple[ast.AST, Write]]:
    """What is written where the function looks, or returned to a cache."""
    looked_at = _looked_at(function)
    for node, write in _writes(function, loaded) if looked_at else ():
        if write[0] in looked_at:
            yield node, write
    if any("cache" in ast.unparse(one) for one in function.node.decorator_list):
        for node in function.nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                yield node, ("", node.value, -1)


def _looked_at(function: Function) -> set[str]:
    """The attributes of which the function may ask whether they are there."""
    return {name for node in function.nodes if (name := _questioned(node)) is not None}


def _questioned(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(ast.Attribute(attr=name), [_], [ast.Constant(None)]):
            return name
        case ast.Compare(_, [ast.In() | ast.NotIn()], [ast.Attribute(attr=name)]):
            return name
        case ast.UnaryOp(ast.Not(), ast.Attribute(attr=name)):
            return name
        case ast.Assign([ast.Name()], ast.Attribute(attr=name)):
            return name
        case ast.Call(ast.Name("hasattr" | "getattr"), [_, name, *_]):
            return _text(name)
        case ast.Call(ast.Attribute(ast.Attribute(attr=name), "get")):
            return name
    return None


def _makes_config(func: ast.expr) -> bool:
    if isinstance(func, ast.Attribute) and func.attr == "make":
        func = func.value
    return last_name(func).endswith(_CONFIGS)


def _slot(target: ast.expr, loaded: Set[str]) -> str:
    """The attribute that a target is or is an item of, if it is no held tensor."""
    match target:
        case ast.Attribute(attr=name):
            return "" if name == "data" else name
        case ast.Subscript(ast.Attribute(attr=name), key):
            is_slice = any(isinstance(one, ast.Slice) for one in ast.walk(key))
            return "" if is_slice or name == "data" or name in loaded else name
    return ""


def _text(name: ast.expr) -> str:
    return str(name.value) if isinstance(name, ast.Constant) else ast.unparse(name)
