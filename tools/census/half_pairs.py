# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Loaders that keep a checkpoint tensor in a dictionary until another one comes.

A load may bring the two in different calls, and with other bytes behind the first by
then. So each tensor goes into a parameter at once, and what takes several is done in
post-load processing. A site, of the kind ``half``, is

- a statement that puts a checkpoint tensor into a dictionary whose entries the function
  looks up: ``entry["scale"] = tensor``, ``found.setdefault(name, tensor)``;
- a call of a function that does so with a dictionary which it is given.

Checkpoint tensors are the second of each pair in a loop over an argument that has them,
and what functions are given that are called with these. Functions are told apart by
name alone, and dictionaries by the text of what they are first taken from.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tools.census.sites import Site
from tools.census.tree import Function, arguments_of, last_name

KINDS = ("half",)
_MAKERS = frozenset({"dict", "defaultdict", "OrderedDict"})
_LOOKUPS = frozenset({"get", "pop", "setdefault"})
_PUTS = frozenset({"append", "setdefault"})


def find_half_pairs(functions: Sequence[Function]) -> list[Site]:
    """The sites of the functions that run in a load, in order of path and line.

    Args:
        functions: The functions.
    """
    loaders = [_Loader(function) for function in functions]
    _hand_on(loaders)
    sites = [
        _site(loader.function, node) for loader in loaders for node, _ in loader.puts()
    ]
    fillers = {
        loader.function.node.name
        for loader in loaders
        if any(origin in loader.arguments for _, origin in loader.puts())
    }
    sites += [
        _site(function, node)
        for function in functions
        for node in function.nodes
        if isinstance(node, ast.Call) and last_name(node.func) in fillers
    ]
    return sorted(sites, key=lambda site: (site.path, site.line))


def _site(function: Function, node: ast.Assign | ast.Call) -> Site:
    text = ast.unparse(node)
    return Site(function.path, function.name, node.lineno, KINDS[0], text)


def _hand_on(loaders: Sequence["_Loader"]) -> None:
    """Finds the arguments that are checkpoint tensors, from one call to the next."""
    by_name = defaultdict(list)
    for loader in loaders:
        by_name[loader.function.node.name].append(loader)
    queue = [loader for loader in loaders if loader.tensors]
    while queue:
        caller = queue.pop()
        for name, given in caller.calls():
            for loader in by_name.get(name, ()):
                found = loader.bound(given) - loader.tensors
                if found:
                    loader.tensors |= found
                    queue.append(loader)


class _Loader:
    """What a function does with checkpoint tensors and dictionaries.

    Attributes:
        function: The function.
        arguments: Its arguments, without ``self``.
        tensors: Its names for checkpoint tensors.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self._nodes = list(ast.walk(function.node))
        self._given = [
            one for one in arguments_of(function.node) if one.arg not in ("self", "cls")
        ]
        self.arguments = [one.arg for one in self._given]
        self.tensors = set(self._looped())

    def calls(self) -> Iterator[tuple[str, Mapping[int | str, ast.expr]]]:
        """Names of the functions it calls with checkpoint tensors, with these."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and (name := last_name(node.func)):
                given: dict[int | str, ast.expr] = dict(enumerate(node.args))
                given |= {one.arg: one.value for one in node.keywords if one.arg}
                yield name, {k: v for k, v in given.items() if self._is_tensor(v)}

    def bound(self, given: Mapping[int | str, ast.expr]) -> set[str]:
        """Arguments that a call binds, by position or name."""
        positional = dict(enumerate(self.arguments))
        names = (positional.get(k) if isinstance(k, int) else k for k in given)
        return {name for name in names if name in self.arguments}

    def puts(self) -> Iterator[tuple[ast.Assign | ast.Call, str]]:
        """Statements that put a checkpoint tensor into a dictionary, and its origin."""
        if not self.tensors:
            return
        origins = _Origins(self._nodes)
        for node in self._nodes:
            match node:
                case ast.Assign([ast.Subscript(holder)], value):
                    pass
                case ast.Call(ast.Attribute(holder, attr), [*_, value]) if (
                    attr in _PUTS
                ):
                    pass
                case _:
                    continue
            origin = origins.of(holder)
            if origin in origins.looked_up and self._is_tensor(value):
                yield node, origin

    def _is_tensor(self, value: ast.expr) -> bool:
        """Whether a value is a checkpoint tensor, is made of one, or has one in it."""
        match value:
            case ast.Name(name):
                return name in self.tensors
            case ast.Tuple(parts) | ast.List(parts) | ast.Dict(values=parts):
                return any(map(self._is_tensor, parts))
            case ast.Call(ast.Attribute(holder)):
                return self._is_tensor(holder)
        return False

    def _looped(self) -> Iterator[str]:
        """Second names of loops over an argument that has checkpoint tensors."""
        having = {one.arg for one in self._given if _has_tensors(one)}
        for node in self._nodes:
            match node:
                case ast.For(ast.Tuple([_, ast.Name(name)]), iterable):
                    nodes = ast.walk(iterable)
                    names = {one.id for one in nodes if isinstance(one, ast.Name)}
                    if names & having:
                        yield name


class _Origins:
    """Dictionaries of a function, by the text of what they are first taken from.

    Attributes:
        looked_up: Those whose entries are looked up.
    """

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._nodes = nodes
        self._locals = dict(self._named())
        self.looked_up = (self._read() & self._dictionaries()) - {""}

    def of(self, node: ast.expr, depth: int = 4) -> str:
        """The origin of a dictionary, or of one in it; empty if it has none."""
        match node:
            case ast.Name(name) if name in self._locals and depth:
                return self.of(self._locals[name], depth - 1) or name
            case ast.Name() | ast.Attribute():
                return ast.unparse(node)
            case ast.Subscript(holder):
                return self.of(holder, depth)
            case ast.Call(ast.Name("getattr"), [holder, ast.Constant(str(name)), *_]):
                return f"{ast.unparse(holder)}.{name}"
            case ast.Call(ast.Attribute(holder, attr)) if attr in _LOOKUPS:
                return self.of(holder, depth)
        return ""

    def _named(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self._nodes:
            match node:
                case ast.Assign(targets, ast.Subscript() | ast.Call() as value):
                    names = (one for one in targets if isinstance(one, ast.Name))
                    yield from ((one.id, value) for one in names)

    def _read(self) -> set[str]:
        found: set[str] = set()
        for node in self._nodes:
            match node:
                case ast.Subscript(holder, ctx=ast.Load() | ast.Del()):
                    found.add(self.of(holder))
                case ast.Call(ast.Attribute(holder, attr)) if attr in _LOOKUPS:
                    found.add(self.of(holder))
        return found

    def _dictionaries(self) -> set[str]:
        """Origins that are dictionaries, as they are made or used."""
        found: set[str] = set()
        for node in self._nodes:
            match node:
                case ast.Assign(targets, value) if _is_dictionary(value):
                    found.update(map(self.of, targets))
                case ast.AnnAssign(target, value=ast.expr() as value) if _is_dictionary(
                    value
                ):
                    found.add(self.of(target))
                case ast.Call(ast.Attribute(holder, attr)) if attr in _LOOKUPS:
                    found.add(self.of(holder))
                case ast.Subscript(holder, ctx=ast.Del()):
                    found.add(self.of(holder))
        return found


def _has_tensors(argument: ast.arg) -> bool:
    text = ast.unparse(argument.annotation) if argument.annotation else ""
    return "weight" in argument.arg or "Tensor" in text


def _is_dictionary(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return last_name(value.func) in _MAKERS
    return isinstance(value, ast.Dict | ast.DictComp)
