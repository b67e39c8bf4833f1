# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The functions that run in a load or after it: roots, and what they refer to."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from tools.census.tree import Class, Function, Tree

PACKAGES = (
    "vllm/kernels/",
    "vllm/lora/",
    "vllm/model_executor/",
    "vllm/models/",
    "vllm/utils/",
    "vllm/v1/attention/",
    "vllm/v1/spec_decode/",
)
ROOTS = frozenset(
    {
        "process_weights_after_loading",
        # Runs again in a reload; many models finish their weights at its end.
        "load_weights",
        "refresh_quantized_lm_heads",
        "maybe_retie_word_embeddings",
    }
)
STOPS = frozenset(
    {
        "__init__",
        "apply",
        "apply_weights",
        "create_weights",
        "embed_input_ids",
        "forward",
    }
)
_HOOK = "process_weights_after_loading"
_LOADER = "weight_loader"


def in_scope(path: str, text: str) -> bool:
    """Whether a file is part of the walk: by its package, or as it has a hook."""
    return path.endswith(".py") and (path.startswith(PACKAGES) or _HOOK in text)


def reached(tree: Tree) -> list[Function]:
    """Every function that runs in a load or after it, in order of path and line.

    Roots are the functions named in ``ROOTS``, weight loaders and what makes them, and
    a function that puts a hook of its own in the place of another.
    """
    queue = [item for item in tree.functions() if _is_root(tree, item)]
    found = {id(item): item for item in queue}
    while queue:
        for item in _references(tree, queue.pop()):
            if id(item) not in found and item.node.name not in STOPS:
                found[id(item)] = item
                queue.append(item)
    return sorted(found.values(), key=lambda item: (item.path, item.node.lineno))


def _is_root(tree: Tree, function: Function) -> bool:
    name = function.node.name
    if name in ROOTS or name.endswith(_LOADER):
        return True
    return f".{_HOOK} = " in tree.modules[function.path].text and any(
        isinstance(node, ast.Assign) and _installs_hook(node) for node in function.nodes
    )


def _installs_hook(node: ast.Assign) -> bool:
    return any(
        isinstance(target, ast.Attribute) and target.attr == _HOOK
        for target in node.targets
    )


def _references(tree: Tree, function: Function) -> Iterator[Function]:
    called = {id(node.func) for node in function.nodes if isinstance(node, ast.Call)}
    for node in function.nodes:
        if isinstance(node, ast.Name):
            yield from _named(tree, function.path, node.id)
        elif isinstance(node, ast.Attribute):
            known = _attribute(tree, function, node)
            if known is not None:
                yield from known
            elif id(node) in called:
                yield from tree.methods.get(node.attr, ())


def referred(tree: Tree, function: Function, node: ast.expr) -> Iterable[Function]:
    """The functions of the tree that a name or attribute may be; none if unknown."""
    match node:
        case ast.Name(name):
            return _named(tree, function.path, name)
        case ast.Attribute():
            return _attribute(tree, function, node) or ()
    return ()


def _named(tree: Tree, path: str, name: str) -> Iterable[Function]:
    known = tree.lookup(path, name)
    return known if isinstance(known, list) else ()


def _attribute(
    tree: Tree, function: Function, node: ast.Attribute
) -> Iterable[Function] | None:
    """What an attribute refers to, or None if its object is unknown."""
    imports = tree.modules[function.path].imports
    match node.value:
        case ast.Name("self" | "cls") if function.owner is not None:
            return _methods(tree.hierarchy(function.owner), node.attr)
        case ast.Call(ast.Name("super")) if function.owner is not None:
            return _methods(tree.ancestors(function.owner), node.attr)
        case ast.Name(name) if name in imports:
            return _imported(tree, function.path, name, node.attr, imports)
    return None


def _imported(
    tree: Tree, path: str, name: str, attribute: str, imports: Mapping[str, tuple]
) -> Iterable[Function] | None:
    module = tree.file(".".join(filter(None, imports[name])))
    if module is not None:
        return _named(tree, module, attribute)
    known = tree.lookup(path, name)
    if isinstance(known, Class):
        return _methods(tree.hierarchy(known), attribute)
    return () if imports[name][0].partition(".")[0] != "vllm" else None


def _methods(classes: Iterable[Class], name: str) -> list[Function]:
    return [item.methods[name] for item in classes if name in item.methods]
