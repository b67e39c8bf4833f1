# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a layerwise reload knows of its model while it is under way."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .host_numbers import HostNumbers
from .startup_tensors import StartupTensors
from .undefined_weights import clear_undefined, mark_undefined, undefined_layers

__all__ = ["LayerwiseState"]

_states: WeakKeyDictionary[torch.nn.Module, "LayerwiseState"] = WeakKeyDictionary()


class _Writer(NamedTuple):
    layer: torch.nn.Module
    name: str


@dataclass
class LayerwiseState:
    """One layerwise reload: the kernel tensors, and what it has written to."""

    model: torch.nn.Module
    names: dict[torch.nn.Module, str]
    startup: dict[torch.nn.Module, StartupTensors]
    undefined_before: set[str]
    host_numbers: HostNumbers
    _marked: set[str] = field(default_factory=set)
    _writers: dict[int, _Writer] = field(default_factory=dict)
    """Who wrote to a parameter first, by the parameter's id."""

    @classmethod
    def begin(cls, model: torch.nn.Module) -> "LayerwiseState":
        """Records the model as it serves, before anything about it changes."""
        names = {layer: name for name, layer in model.named_modules()}
        startup = {layer: StartupTensors(layer) for layer in names}
        numbers = HostNumbers(model)
        state = cls(model, names, startup, undefined_layers(model), numbers)
        _states[model] = state
        return state

    @staticmethod
    def of(model: torch.nn.Module) -> "LayerwiseState | None":
        """The reload of a model that is under way, if there is one."""
        return _states.get(model)

    def end(self) -> None:
        """Forgets the reload."""
        _states.pop(self.model, None)

    def full_name(self, layer: torch.nn.Module, name: str) -> str:
        """A tensor's name in the model."""
        return f"{self.names[layer]}.{name}".lstrip(".")

    def kernel_tensor(self, layer: torch.nn.Module, name: str) -> torch.Tensor | None:
        """What kernels read under a name; None if the layer had nothing there."""
        startup = self.startup[layer].registered.get(name)
        return None if startup is None else startup.data

    def restore(self, layer: torch.nn.Module) -> None:
        """Registers the layer's kernel tensors again, with what they hold now."""
        self.startup[layer].restore()

    def restore_all(self) -> None:
        """Registers the kernel tensors of all layers again."""
        for startup in self.startup.values():
            startup.restore()

    def mark(self, layer: torch.nn.Module) -> None:
        """Notes that the layer is about to be written to."""
        self._marked.add(self.names[layer])
        mark_undefined(self.model, self.names[layer])

    def is_marked(self, layer: torch.nn.Module) -> bool:
        """Whether this reload has begun to write to the layer."""
        return self.names[layer] in self._marked

    def clear_marks(self) -> None:
        """Notes that all that was written to is right again."""
        clear_undefined(self.model, self._marked | self.undefined_before)

    def put_back(self, layer: torch.nn.Module) -> None:
        """Copies what post-load processing made into the kernel tensors.

        Raises:
            RuntimeError: It made tensors of another layout. None was written to.
        """
        startup = self.startup[layer]
        for name, buffer in startup.buffers.items():
            # One that views a parameter has no model format of its own.
            if buffer is not None and name not in layer._buffers:
                layer._buffers[name] = buffer
        for name, old in startup.registered.items():
            new = layer._parameters.get(name)
            if new is not None and is_traceable_wrapper_subclass(old.data):
                # It has no memory of its own by which to tell where it is.
                old.data.copy_(new)
                layer._parameters[name] = startup.parameters[name]
        startup.put_back()

    def refuse_conflict(self, layer: torch.nn.Module, arrived: Collection[str]) -> None:
        """Check a layer against others that have the same parameter.

        Args:
            layer: Processed layer, about to be copied into the kernel tensors.
            arrived: Names of those of its parameters that the reload brought.

        Raises:
            RuntimeError: Another layer has brought other contents for one of them.
        """
        for name in arrived:
            startup = self.startup[layer].registered.get(name)
            if startup is None:
                continue
            writer = _Writer(layer, name)
            first = self._writers.setdefault(id(startup.tensor), writer)
            if first.layer is layer or _same_bytes(getattr(layer, name), startup.data):
                continue
            raise RuntimeError(
                f"{self.full_name(*first)} and {self.full_name(*writer)} are tied: "
                "they were equal when the model was loaded, and share one storage "
                "since then; this reload brought different weights for them. Restart "
                "the engine with these weights"
            )

    def brought_by_others(self, layer: torch.nn.Module) -> set[str]:
        """Names of the layer's parameters that came under a name in another layer."""
        return {
            name
            for name, startup in self.startup[layer].registered.items()
            if id(startup.tensor) in self._writers
        }


def _same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(
        first.detach().contiguous().view(-1).view(torch.uint8),
        second.detach().contiguous().view(-1).view(torch.uint8),
    )
