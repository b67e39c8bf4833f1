# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Records what the first load of a model brings, to compare later ones with.

Only the first load tells which tensors a checkpoint has: a layer may register others
that no checkpoint brings. Observation begins when the model has been built and ends
before post-load processing.
"""

from weakref import WeakSet

import torch
from torch.nn.parameter import UninitializedParameter

from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from .arrivals import Arrivals, get_weight_loader, observed_loader
from .layerwise import get_layerwise_info
from .meta import to_meta_tensor
from .sanitize import sanitize_layer_refs
from .utils import get_layer_tensors

__all__ = ["end_first_load", "observe_first_load"]

_CHUNK = 1 << 24
_observed: WeakSet[torch.nn.Module] = WeakSet()


def observe_first_load(model: torch.nn.Module) -> None:
    """Begin to observe the loaders of a model that has just been built.

    Args:
        model: The model. Its tensors get wrapped weight loaders; those on the meta
            device, which are created anew while they load, are left alone.
    """
    _observed.add(model)
    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.first_load = Arrivals()
        for name, tensor in get_layer_tensors(layer).items():
            if tensor.is_meta or isinstance(tensor, UninitializedParameter):
                continue
            if (value := _common_value(tensor)) is not None:
                info.creation_values[name] = value
            _observe(tensor, name, info.first_load)


def end_first_load(model: torch.nn.Module) -> None:
    """End the observation; does nothing where none is under way."""
    if model not in _observed:
        return
    _observed.discard(model)
    infos = {layer: get_layerwise_info(layer) for layer in model.modules()}
    observed_any = any(info.first_load for info in infos.values())
    for layer, info in infos.items():
        tensors = get_layer_tensors(layer)
        for tensor in tensors.values():
            _stop_observing(tensor)
        info.loaded_names = tuple(tensors)
        recorded = info.restore_metadata[0] | info.restore_metadata[1]
        info.late_metadata = {
            name: sanitize_layer_refs(to_meta_tensor(tensor), layer)
            for name, tensor in tensors.items()
            if not isinstance(tensor, UninitializedParameter)
            and not _same_format(recorded.get(name), tensor)
        }
        if not observed_any:
            info.first_load = None


def _same_format(recorded: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    """Whether a tensor still has the format in which it was created.

    A weight loader may register another parameter under its name.
    """
    return (
        recorded is not None
        and type(recorded) is type(tensor)
        and recorded.shape == tensor.shape
        and recorded.dtype == tensor.dtype
    )


def _observe(tensor: torch.Tensor, name: str, arrivals: Arrivals) -> None:
    loader = get_weight_loader(tensor)
    observed = observed_loader(
        loader,
        before_call=lambda: None,
        before_write=lambda: None,
        arrived=lambda place, numel: arrivals.add(name, place, numel),
    )
    observed.observes = loader  # type: ignore[attr-defined]
    tensor.weight_loader = observed


def _stop_observing(tensor: torch.Tensor) -> None:
    loader = get_weight_loader(tensor)
    if not hasattr(loader, "observes"):
        return
    while hasattr(loader, "observes"):
        loader = loader.observes
    if loader is default_weight_loader:
        del tensor.weight_loader
    else:
        tensor.weight_loader = loader


def _common_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """The value of all elements, if they have the same bits; a 0-d tensor."""
    if tensor.numel() == 0 or not tensor.is_contiguous():
        return None
    flat = tensor.detach().view(-1)
    elements = flat.view(torch.uint8).view(flat.numel(), flat.element_size())
    sample = elements[[0, elements.shape[0] // 2, -1]]
    if not bool((sample == sample[0]).all()):
        return None
    if not all(bool((part == sample[0]).all()) for part in elements.split(_CHUNK)):
        return None
    return flat[0].clone()
