# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The functions and classes of the composed tree, and what their names refer to."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_ROOT_CLASS = "Module"
_LISTED = (
    ast.AnnAssign,
    ast.Assign,
    ast.Attribute,
    ast.Call,
    ast.Compare,
    ast.Delete,
    ast.Name,
    ast.Return,
    ast.UnaryOp,
)


def arguments_of(node: FunctionNode) -> list[ast.arg]:
    """The arguments of a function, without those that collect others."""
    given = node.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


@dataclass(eq=False)
class Function:
    """A module-level function or a method; what is nested in it is part of it.

    Attributes:
        path: Its file, relative to the repository's root.
        name: Qualified name: ``f``, or ``Class.f``.
        node: Its syntax.
        owner: The class that it is a method of.
    """

    path: str
    name: str
    node: FunctionNode
    owner: "Class | None" = None

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Names, calls, comparisons, simple statements in it, outermost first."""
        return [node for node in ast.walk(self.node) if isinstance(node, _LISTED)]


@dataclass(eq=False)
class Class:
    """A module-level class.

    Attributes:
        path: Its file.
        name: Its name.
        bases: Last component of the name of each base.
        methods: Its own methods, by name.
        kept_constants: The names that its own attribute of this name lists.
    """

    path: str
    name: str
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)
    kept_constants: frozenset[str] = frozenset()


@dataclass(eq=False)
class Module:
    """One file.

    Attributes:
        path: Its path.
        text: Its source.
        tree: Its syntax.
        functions: Its module-level functions, by name. Where there are several of one
            name, as under ``if``, all of them.
        classes: Its module-level classes, by name.
    """

    path: str
    text: str
    tree: ast.Module
    functions: dict[str, list[Function]]
    classes: dict[str, Class]

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """For each imported name, the module and, unless it is one itself, the name."""
        return dict(_imports(self.path, self.tree))


class Tree:
    """All the modules, and look-ups across them.

    Args:
        sources: Text of each Python file, by path relative to the repository's root.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.modules = {
            path: parse_module(path, text) for path, text in sources.items()
        }
        self.methods: dict[str, list[Function]] = defaultdict(list)
        self._classes: dict[str, list[Class]] = defaultdict(list)
        self._children: dict[str, list[Class]] = defaultdict(list)
        self._families: dict[int, list[Class]] = {}
        for module in self.modules.values():
            for item in module.classes.values():
                self._classes[item.name].append(item)
                for base in item.bases:
                    self._children[base].append(item)
                for name, method in item.methods.items():
                    self.methods[name].append(method)

    def functions(self) -> Iterator[Function]:
        """Every function and method."""
        for module in self.modules.values():
            for group in module.functions.values():
                yield from group
            for item in module.classes.values():
                yield from item.methods.values()

    def named(self, name: str) -> list[Class]:
        """Every class of a name."""
        return self._classes.get(name, [])

    def hierarchy(self, item: Class) -> list[Class]:
        """A class, its ancestors and descendants, and the ancestors of these."""
        if id(item) not in self._families:
            below = self._closure([item], self._subclasses)
            self._families[id(item)] = self._closure(below, self._superclasses)
        return self._families[id(item)]

    def ancestors(self, item: Class) -> list[Class]:
        """The classes that a class derives from, itself left out."""
        return self._closure([item], self._superclasses)[1:]

    def is_module(self, item: Class) -> bool:
        """Whether an instance may be an ``nn.Module``, be it as a mixin."""
        return any(_ROOT_CLASS in one.bases for one in self.hierarchy(item))

    def lookup(self, path: str, name: str) -> list[Function] | Class | None:
        """What a module-level name of a file refers to, through imports."""
        for _ in range(8):
            module = self.modules.get(path)
            if module is None:
                return None
            if name in module.functions:
                return module.functions[name]
            if name in module.classes:
                return module.classes[name]
            if name not in module.imports:
                return None
            dotted, name = module.imports[name]
            path = self.file(dotted) or ""
        return None

    def file(self, dotted: str) -> str | None:
        """Path of a module, by its dotted name."""
        stem = dotted.replace(".", "/")
        candidates = (f"{stem}.py", f"{stem}/__init__.py")
        return next((path for path in candidates if path in self.modules), None)

    def _subclasses(self, item: Class) -> list[Class]:
        return self._children[item.name]

    def _superclasses(self, item: Class) -> list[Class]:
        found = []
        for base in item.bases:
            known = self.lookup(item.path, base)
            found += [known] if isinstance(known, Class) else self._classes[base]
        return found

    @staticmethod
    def _closure(
        start: list[Class], step: Callable[[Class], list[Class]]
    ) -> list[Class]:
        found = {id(item): item for item in start}
        queue = list(found.values())
        while queue:
            for item in step(queue.pop()):
                if id(item) not in found:
                    found[id(item)] = item
                    queue.append(item)
        return list(found.values())


def parse_module(path: str, text: str) -> Module:
    """The functions and classes of one file."""
    tree = ast.parse(text, path)
    module = Module(path, text, tree, defaultdict(list), {})
    for node in _definitions(tree):
        if isinstance(node, ast.ClassDef):
            module.classes[node.name] = _class(path, node)
        else:
            module.functions[node.name].append(Function(path, node.name, node))
    return module


def _class(path: str, node: ast.ClassDef) -> Class:
    bases = tuple(name for base in node.bases if (name := last_name(base)))
    item = Class(path, node.name, bases, kept_constants=frozenset(_constants(node)))
    for child in _definitions(node):
        if not isinstance(child, ast.ClassDef):
            name = f"{node.name}.{child.name}"
            item.methods[child.name] = Function(path, name, child, item)
    return item


def _constants(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        match child:
            case ast.Assign(
                [ast.Name("kept_constants")], ast.Tuple(items)
            ) | ast.AnnAssign(ast.Name("kept_constants"), value=ast.Tuple(items)):
                yield from (ast.literal_eval(item) for item in items)


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | FunctionNode]:
    """Definitions of a module or class, also those under its ``if`` and ``try``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | FunctionNode):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from _definitions(child)


def _imports(path: str, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    package = path.rpartition("/")[0].split("/")
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], (alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, (source, alias.name)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _statements(child)


def last_name(node: ast.expr) -> str:
    """The last component of a name: ``C`` of ``a.b.C`` and of ``C[int]``."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
