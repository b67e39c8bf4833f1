# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Gives who holds a tensor that a reload made the startup tensor in its place.

Post-load processing hands the parameters it makes to quant configs, kernels and experts
objects, also as views. When their contents have gone into the startup tensors, these
objects would keep the copies, and their memory, until the next reload.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .object_references import is_opaque, module_attributes, references

__all__ = ["MadeTensor", "hand_over"]


class MadeTensor(NamedTuple):
    """A tensor that post-load processing made in the place of a startup tensor."""

    made: torch.Tensor
    """The object that was made, or the startup object with other data."""
    data: torch.Tensor
    """The memory that it was made in."""
    startup: torch.Tensor
    """The startup object."""
    memory: torch.Tensor
    """The startup object's own memory, whatever it holds now."""


def hand_over(layer: torch.nn.Module, made: Iterable[MadeTensor]) -> None:
    """Replaces made tensors in all objects that a layer holds, other modules left out.

    Attributes, list and dict members that are a made tensor become the startup tensor.
    A view of one gets the same view of the startup tensor as its data, where both have
    one layout; so does a made tensor that a tuple or a closure holds.

    Args:
        layer: Layer that has its startup tensors again.
        made: What was made for it.
    """
    by_id = {id(one.made): one for one in made if one.made is not one.startup}
    # Empty tensors share the address 0.
    startup = {0, *(_storage(one.memory) for one in made)}
    by_storage = {
        _storage(one.data): one for one in made if _storage(one.data) not in startup
    }
    if not by_id and not by_storage:
        return
    held = [value for _, value in module_attributes(layer)]
    _replace(vars(layer), by_id)
    # The objects too, so that no id is used again.
    entered: dict[int, Any] = {}
    while held:
        value = held.pop()
        if id(value) in entered:
            continue
        entered[id(value)] = value
        if isinstance(value, torch.Tensor):
            _repoint(value, by_id, by_storage)
        elif not is_opaque(value) and not isinstance(value, torch.nn.Module):
            _replace(value, by_id)
            _replace(getattr(value, "__dict__", None), by_id)
            held += [reference for _, reference in references(value)]


def _replace(holder: object, by_id: dict[int, MadeTensor]) -> None:
    """Puts startup tensors in the places of made ones in a dict or list."""
    if isinstance(holder, dict):
        places = list(holder.items())
    elif isinstance(holder, list):
        places = list(enumerate(holder))
    else:
        return
    for key, value in places:
        if id(value) in by_id:
            holder[key] = by_id[id(value)].startup  # type: ignore[index]


def _repoint(
    tensor: torch.Tensor,
    by_id: dict[int, MadeTensor],
    by_storage: dict[int, MadeTensor],
) -> None:
    """Has a made tensor, or a view of one, read the startup tensor's memory."""
    if tensor.is_inference() or is_traceable_wrapper_subclass(tensor):
        return
    if id(tensor) in by_id:
        tensor.data = by_id[id(tensor)].memory
    elif (one := by_storage.get(_storage(tensor))) is not None:
        view = _same_view(tensor, one)
        if view is not None:
            tensor.data = view


def _same_view(tensor: torch.Tensor, one: MadeTensor) -> torch.Tensor | None:
    """The view of the startup tensor that ``tensor`` is of the made one's memory."""
    if one.data.stride() != one.memory.stride():
        return None
    first = one.memory.data_ptr() - one.memory.untyped_storage().data_ptr()
    offset = first + tensor.data_ptr() - one.data.data_ptr()
    storage = one.memory.untyped_storage()
    extent = 1 + sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    itemsize = tensor.element_size()
    if offset < first or offset % itemsize or tensor.numel() == 0:
        return None
    if offset + extent * itemsize > storage.nbytes():
        return None
    view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return view.set_(storage, offset // itemsize, tensor.shape, tensor.stride())


def _storage(tensor: torch.Tensor) -> int:
    """Address of the storage; 0 for a tensor that wraps others and has none."""
    if is_traceable_wrapper_subclass(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()
