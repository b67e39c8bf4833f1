# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What becomes of tensors that a reload does not bring."""

from collections.abc import Collection, Mapping

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.quantization.in_place_loading import InPlaceLoading

from .arrivals import Arrivals
from .startup_tensors import is_same_stretch, model_format_view
from .types import LayerReloadingInfo
from .utils import get_tensor_load_numel

__all__ = [
    "bytes_in_model_format",
    "incomplete_in_place",
    "missing_tensors",
    "processing_keeps_left_out",
]


def processing_keeps_left_out(layer: torch.nn.Module) -> bool:
    """Whether post-load processing may run again over tensors of an earlier load."""
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return True
    process = type(method).process_weights_after_loading
    return (
        process is QuantizeMethodBase.process_weights_after_loading
        or method.reloads_per_tensor(layer)
    )


def bytes_in_model_format(
    kernel: torch.Tensor | None, metadata: torch.Tensor
) -> torch.Tensor | None:
    """A tensor that kernels read, viewed as loaders write it.

    Args:
        kernel: The tensor in kernel format, if there is one.
        metadata: The tensor in model format, on the meta device.

    Returns:
        The view; None if the two formats are not the same elements, at most with
        dimensions swapped.
    """
    if kernel is None or is_traceable_wrapper_subclass(kernel):
        return None
    view = model_format_view(kernel, metadata)
    return view if view is not None and is_same_stretch(view, kernel) else None


def missing_tensors(
    info: LayerReloadingInfo,
    arrivals: Arrivals,
    formats: Mapping[str, torch.Tensor],
    ignored: Collection[str] = (),
) -> list[str]:
    """Tensors without which a layer cannot be processed.

    Args:
        info: What the first load brought, if it is known. If not, every element of
            every parameter must come, but for parameters that are created with one
            value everywhere.
        arrivals: What the reload brought.
        formats: The layer's parameters, in model format.
        ignored: Names of parameters that need not come.

    Returns:
        Their names, with the place in brackets where the rest of a parameter came.
    """
    if info.first_load:
        return arrivals.missing(info.first_load.without(ignored))
    missing = []
    for name, metadata in formats.items():
        numel, expected = arrivals.numel(name), get_tensor_load_numel(metadata)
        if name in ignored or numel >= expected:
            continue
        if name in arrivals:
            missing.append(f"{name} ({numel} of {expected} elements came)")
        elif not _means_not_loaded(info.creation_values.get(name)):
            missing.append(name)
    return missing


def _means_not_loaded(value: torch.Tensor | None) -> bool:
    """Whether post-load processing can tell by a value that nothing was loaded.

    Zeros are what fresh memory has, too.
    """
    return value is not None and bool(value.view(-1).view(torch.uint8).any())


def incomplete_in_place(
    name: str,
    layer: torch.nn.Module,
    method: InPlaceLoading,
    info: LayerReloadingInfo,
    arrivals: Arrivals,
    undefined: bool,
) -> list[str]:
    """What is wrong with a layer whose method loads it in place.

    Args:
        name: Its name in the model.
        layer: The layer, in model format.
        method: Its method.
        info: What the first load brought, if it is known.
        arrivals: What the reload brought.
        undefined: Whether a failed reload has written to it: then what the method does
            not judge, as a bias, has to come again.

    Returns:
        Sentences.
    """
    problems = []
    try:
        method.check_loaded(layer)
    except ValueError as error:
        problems.append(f"{name}: {error}")
    judged = method.judged_parameters
    others = {
        n: p for n, p in layer._parameters.items() if n not in judged and p is not None
    }
    if undefined and (missing := missing_tensors(info, arrivals, others, judged)):
        problems.append(
            f"{name}, undefined since a failed reload, misses {', '.join(missing)}"
        )
    return problems
