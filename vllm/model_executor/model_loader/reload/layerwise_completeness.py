# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Whether a layer of a layerwise reload has got what it needs."""

from collections.abc import Mapping

import torch

from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.in_place_loading import in_place_method

from .layerwise_state import LayerwiseState
from .left_out import (
    bytes_in_model_format,
    incomplete_in_place,
    missing_tensors,
    processing_keeps_left_out,
)
from .meta import SKIP_LOAD_TENSORS
from .types import LayerReloadingInfo
from .utils import get_layer_tensors, get_tensor_load_numel

__all__ = ["has_all_parameters", "is_complete", "keeps_left_out", "require_complete"]


def is_complete(layer: torch.nn.Module, info: LayerReloadingInfo) -> bool:
    """Whether no further tensor is expected for a layer.

    Compared with the first load if that is known. If not, or in a first load, every
    element must have come from a place of its own.

    Args:
        layer: Layer that loaders write to, with all of its parameters.
        info: What has arrived for it.
    """
    arrivals = info.arrivals
    if info.reload is not None and info.first_load:
        # Comparing all places takes long for a layer of many experts.
        expected = info.first_load
        never = sum(expected.numel(name) for name in SKIP_LOAD_TENSORS)
        return arrivals.total >= expected.total - never and not arrivals.missing(
            expected.without(SKIP_LOAD_TENSORS)
        )
    assert info.load_numel_total is not None
    return (
        arrivals.total >= info.load_numel_total
        and arrivals.places_agree
        and all(
            arrivals.numel(name) >= get_tensor_load_numel(tensor)
            for name, tensor in get_layer_tensors(layer).items()
            if name not in SKIP_LOAD_TENSORS
        )
    )


def keeps_left_out(layer: torch.nn.Module, info: LayerReloadingInfo) -> bool:
    """Whether the tensors that a reload leaves out keep what they hold."""
    reload = info.reload
    assert reload is not None
    return processing_keeps_left_out(layer) and all(
        metadata.numel() == 0
        or bytes_in_model_format(reload.kernel_tensor(layer, name), metadata)
        is not None
        for name, metadata in info.restore_metadata[0].items()
    )


def has_all_parameters(layer: torch.nn.Module, info: LayerReloadingInfo) -> bool:
    """Whether everything has arrived that a layer cannot be processed without."""
    formats = _formats(layer, info)
    return not missing_tensors(info, info.arrivals, formats, SKIP_LOAD_TENSORS)


def require_complete(
    infos: Mapping[torch.nn.Module, LayerReloadingInfo], reload: LayerwiseState
) -> None:
    """Check the layers that have not been processed yet.

    Raises:
        RuntimeError: Some did not get all of their tensors, and cannot keep what they
            hold, or hold what a failed reload left; the message names the tensors.
    """
    problems = []
    for layer, info in infos.items():
        name = reload.names[layer]
        undefined = name in reload.undefined_before
        if method := in_place_method(layer):
            if info.arrivals or undefined:
                problems += incomplete_in_place(
                    name, layer, method, info, info.arrivals, undefined
                )
            continue
        if info.reload is None or not info.can_load():
            continue
        if not undefined and (not info.loaded_weights or keeps_left_out(layer, info)):
            continue
        if missing := _missing(layer, info, undefined):
            reason = ", undefined since a failed reload," if undefined else ""
            problems.append(f"{name}{reason} misses {', '.join(missing)}")
    if problems:
        raise RuntimeError(
            "the reload is incomplete, and these layers cannot be processed without "
            "all of their tensors:\n  "
            + "\n  ".join(problems)
            + "\nSend all tensors of these layers in one reload"
        )


def _missing(
    layer: torch.nn.Module, info: LayerReloadingInfo, undefined: bool
) -> list[str]:
    assert info.reload is not None
    ignored = SKIP_LOAD_TENSORS | info.reload.brought_by_others(layer)
    formats = _formats(layer, info)
    missing = missing_tensors(info, info.arrivals, formats, ignored)
    unknown = info.first_load is None and not is_deferred_attention_layer(layer)
    if undefined and unknown and not info.arrivals and not missing:
        # Something of it arrived in the reload that failed; nobody knows what.
        return sorted(formats.keys() - ignored)
    return missing


def _formats(
    layer: torch.nn.Module, info: LayerReloadingInfo
) -> dict[str, torch.Tensor]:
    """The layer's parameters in model format, recorded or not."""
    return info.restore_metadata[0] | {
        name: tensor
        for name, tensor in layer._parameters.items()
        if tensor is not None and tensor.is_meta
    }
