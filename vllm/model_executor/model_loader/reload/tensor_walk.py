# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Find every tensor a model holds, registered or not, by name.

Registered tensors come from `_parameters` and `_buffers`. All others come from
following references, so that tensors inside quant methods, kernels, experts objects
and quant-config dataclasses are found too.
"""

import heapq
from typing import Any, Literal, NamedTuple

import torch

from .object_references import (
    CONTAINER_TYPES,
    is_opaque,
    module_attributes,
    references,
    registered,
)

__all__ = ["FoundTensor", "TensorKind", "walk_tensors"]

TensorKind = Literal["parameter", "buffer", "attribute", "off-tree"]

# Nested shared modules have exponentially many names: a module keeps this many.
MAX_MODULE_NAMES = 64

_REGISTRIES: tuple[tuple[TensorKind, str], ...] = (
    ("parameter", "_parameters"),
    ("buffer", "_buffers"),
)


class FoundTensor(NamedTuple):
    """One name under which a model holds a tensor."""

    name: str
    """Path from the model, such as `layers.0.quant_method.kernel.scales[1]`."""
    kind: TensorKind
    """`parameter` and `buffer`: registered on a registered module. `attribute`: held
    by a registered module, itself or in a list, tuple, dict or set. `off-tree`: held
    by any other object."""
    tensor: torch.Tensor


class _Place(NamedTuple):
    """An object to enter. Places sort by their first fields: shortest path first."""

    through_tensor: bool
    """Reached through an attribute of a tensor, such as its weight loader."""
    depth: int
    module_index: int
    path: str
    serial: int
    kind: TensorKind
    value: Any


def walk_tensors(model: torch.nn.Module) -> list[FoundTensor]:
    """Find every tensor that `model` holds.

    A container or object that is reachable by several paths is entered once, by its
    shortest path. A registered module goes by the first name that `named_modules`
    gives it, and its parameters and buffers are listed under all of its names. A
    reference to a registered module is not followed.

    Args:
        model: the model. It is not written to.

    Returns:
        Parameters, then buffers, then their further names, then attributes and
        off-tree tensors. No name occurs twice; a tensor may have several names.

    """
    return _Walk(model).run()


class _Walk:
    """The state of one walk."""

    def __init__(self, model: torch.nn.Module):
        modules = _registered_modules(model)
        self.aliases = [(module, names[1:]) for module, names in modules]
        self.roots = [
            _Place(False, _depth(names[0]), index, names[0], 0, "attribute", module)
            for index, (module, names) in enumerate(modules)
        ]
        # Holds the objects, so that no id is reused while the walk runs.
        self.entered: dict[int, Any] = {id(module): module for module, _ in modules}
        self.queue: list[_Place] = []
        self.pushed = 0
        self.found: list[FoundTensor] = []
        self.holders: dict[str, torch.Tensor] = {}

    def run(self) -> list[FoundTensor]:
        """Note what is registered, then follow references until none is left."""
        for kind, registry in _REGISTRIES:
            for root in self.roots:
                for label, tensor in registered(root.value, registry):
                    self._visit(root, label, tensor, kind)
        for kind, registry in _REGISTRIES:
            for module, names in self.aliases:
                for label, tensor in registered(module, registry):
                    for name in names:
                        self._add(_join(name, label), tensor, kind)
        for root in self.roots:
            for label, value in module_attributes(root.value):
                self._visit(root, label, value, "attribute")
        while self.queue:
            place = heapq.heappop(self.queue)
            if id(place.value) in self.entered:
                continue
            self.entered[id(place.value)] = place.value
            in_container = issubclass(type(place.value), CONTAINER_TYPES)
            for label, value in references(place.value):
                kind = place.kind if in_container else "off-tree"
                self._visit(place, label, value, kind)
        return self.found

    def _visit(self, parent: _Place, label: str, value: Any, kind: TensorKind) -> None:
        """Note a tensor; queue what is not yet entered and belongs to the model."""
        path = _join(parent.path, label)
        through_tensor = parent.through_tensor or _is_tensor(parent.value)
        if _is_tensor(value):
            self._add(path, value, kind)
        if id(value) in self.entered or is_opaque(value):
            return
        if through_tensor and issubclass(type(value), torch.nn.Module):
            return  # the loader of a parameter that is shared with another model
        self.pushed += 1
        place = _Place(
            through_tensor=through_tensor,
            depth=parent.depth + 1,
            module_index=parent.module_index,
            path=path,
            serial=self.pushed,
            kind=kind,
            value=value,
        )
        heapq.heappush(self.queue, place)

    def _add(self, name: str, tensor: torch.Tensor, kind: TensorKind) -> None:
        """Note `tensor` under `name`, numbered if another tensor has that name."""
        unique, count = name, 1
        while (holder := self.holders.get(unique)) is not None:
            if holder is tensor:
                return
            count += 1
            unique = f"{name}#{count}"
        self.holders[unique] = tensor
        self.found.append(FoundTensor(unique, kind, tensor))


def _registered_modules(
    model: torch.nn.Module,
) -> list[tuple[torch.nn.Module, list[str]]]:
    """All modules in the order of `named_modules`, each with its names."""
    modules: dict[int, tuple[torch.nn.Module, list[str]]] = {}
    start: tuple[str, torch.nn.Module, frozenset[int]] = ("", model, frozenset())
    stack = [start]
    while stack:
        path, module, ancestors = stack.pop()
        _, names = modules.setdefault(id(module), (module, []))
        if len(names) == MAX_MODULE_NAMES or id(module) in ancestors:
            continue
        names.append(path)
        ancestors |= {id(module)}
        stack += [
            (_join(path, label), child, ancestors)
            for label, child in reversed(list(registered(module, "_modules")))
        ]
    return list(modules.values())


def _is_tensor(value: Any) -> bool:
    # Not `isinstance`, which believes an object that poses as another class.
    return issubclass(type(value), torch.Tensor)


def _depth(module_name: str) -> int:
    return module_name.count(".") + 1 if module_name else 0


def _join(path: str, label: str) -> str:
    return f"{path}{label}" if path else label.removeprefix(".")
