# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The tensors of one layer as post-load processing left them, and the way back.

Captured CUDA graphs read these objects at these addresses. A reload may view their
storage in another format and let post-load processing make others; `put_back` writes
what was made into the old ones.
"""

from dataclasses import dataclass

import torch

from .handover import MadeTensor, hand_over
from .utils import get_layer_params_buffers

__all__ = ["StartupTensor", "StartupTensors", "is_same_stretch", "model_format_view"]


@dataclass(frozen=True)
class StartupTensor:
    """A registered tensor: the object, its memory and layout, and its attributes."""

    tensor: torch.Tensor
    data: torch.Tensor
    attributes: dict[str, object]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "StartupTensor":
        """Records a tensor as it is."""
        return cls(tensor, tensor.data, tensor.__dict__.copy())

    def restore(self) -> None:
        """Gives the object its memory, layout and attributes back."""
        if not _same_place(self.tensor, self.data):
            self.tensor.data = self.data
        self.tensor.__dict__.clear()
        self.tensor.__dict__.update(self.attributes)


class StartupTensors:
    """All registered tensors of a layer, and those it holds as plain attributes."""

    def __init__(self, layer: torch.nn.Module):
        self.layer = layer
        self.parameters = layer._parameters.copy()
        self.buffers = layer._buffers.copy()
        self.non_persistent = layer._non_persistent_buffers_set.copy()
        self.plain = _plain_tensors(layer)
        params, buffers = get_layer_params_buffers(layer)
        self.registered = {
            name: StartupTensor.of(tensor)
            for name, tensor in (params | buffers).items()
        }

    def restore(self) -> None:
        """Registers the same objects again; nothing that they hold is written."""
        for startup in self.registered.values():
            startup.restore()
        _refill(self.layer._parameters, self.parameters)
        _refill(self.layer._buffers, self.buffers)
        self.layer._non_persistent_buffers_set.clear()
        self.layer._non_persistent_buffers_set.update(self.non_persistent)
        vars(self.layer).update(self.plain)

    def set_aside_all_but(self, names: set[str]) -> None:
        """Unregisters what post-load processing registered, before it runs again."""
        for registry in (self.layer._parameters, self.layer._buffers):
            for name in registry.keys() - names:
                # None stands for a tensor that the layer goes without.
                if registry[name] is not None:
                    del registry[name]

    def put_back(self) -> None:
        """Writes what post-load processing made into the startup tensors.

        Raises:
            RuntimeError: It made something of another layout, or nothing.
        """
        made = self._made()
        moved = [one for one in made if not _same_place(one.data, one.memory)]
        storages = {_storage(one.memory) for one in moved}
        # A source that lies in memory which is about to be written is read first.
        sources = [
            one.data.clone() if _storage(one.data) in storages else one.data
            for one in moved
        ]
        for one, source in zip(moved, sources, strict=True):
            one.memory.copy_(source)
        self.restore()
        hand_over(self.layer, made)

    def _made(self) -> list[MadeTensor]:
        """What takes the places of startup tensors: other objects, or other data."""
        tensors = self.layer._parameters | self.layer._buffers
        made = []
        for name, startup in self.registered.items():
            new = tensors.get(name)
            if new is None and startup.data.numel() == 0:
                continue
            _require_layout(self.layer, name, startup.data, new)
            assert new is not None  # Its layout is the startup tensor's.
            made.append(MadeTensor(new, new.data, startup.tensor, startup.data))
        for name, old in list(self.plain.items()):
            new = self.layer.__dict__.get(name)
            if isinstance(new, torch.Tensor) and _same_layout(old, new):
                made.append(MadeTensor(new, new.data, old, old.data))
            else:
                # The census of a reload reports it, where it matters.
                del self.plain[name]
        return made


def model_format_view(
    startup: torch.Tensor, metadata: torch.Tensor
) -> torch.Tensor | None:
    """A tensor in model format over the memory of one in kernel format.

    Args:
        startup: The tensor in kernel format.
        metadata: The tensor in model format, on the meta device.

    Returns:
        A view that begins where ``startup`` does, or None where its storage ends
        before the model format would.
    """
    if startup.numel() == 0 or startup.is_meta:
        return None
    storage = startup.untyped_storage()
    offset = startup.data_ptr() - storage.data_ptr()
    itemsize = metadata.element_size()
    extent = sum(
        (size - 1) * stride
        for size, stride in zip(metadata.shape, metadata.stride(), strict=True)
    )
    if offset % itemsize or offset + (extent + 1) * itemsize > storage.nbytes():
        return None
    view = torch.empty(0, dtype=metadata.dtype, device=startup.device)
    return view.set_(storage, offset // itemsize, metadata.shape, metadata.stride())


def is_same_stretch(first: torch.Tensor, second: torch.Tensor | None) -> bool:
    """Whether two tensors hold the same elements, at most with dimensions swapped."""
    return (
        second is not None
        and first.dtype == second.dtype
        and first.data_ptr() == second.data_ptr()
        and _dimensions(first) == _dimensions(second)
    )


def _dimensions(tensor: torch.Tensor) -> list[tuple[int, int]]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return sorted((size, stride) for size, stride in sizes if size != 1)


def _plain_tensors(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: v for n, v in vars(layer).items() if isinstance(v, torch.Tensor)}


def _refill(registry: dict, contents: dict) -> None:
    registry.clear()
    registry.update(contents)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_layout(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and first.device == second.device
    )


def _same_place(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (
        _same_layout(first, second)
        and first.stride() == second.stride()
        and first.data_ptr() == second.data_ptr()
    )


def _require_layout(
    layer: torch.nn.Module, name: str, old: torch.Tensor, new: torch.Tensor | None
) -> None:
    if new is not None and _same_layout(old, new):
        return
    found = "nothing" if new is None else f"{new.dtype} {tuple(new.shape)}"
    raise RuntimeError(
        f"post-load processing of {type(layer).__name__} left {found} under {name!r} "
        f"after a reload, and {old.dtype} {tuple(old.shape)} at startup: what captured "
        "graphs read cannot be refilled; restart the engine with these weights"
    )
