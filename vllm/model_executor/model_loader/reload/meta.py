# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import after, replacing

from .left_out import bytes_in_model_format, processing_keeps_left_out


def restore_layer_on_meta(layer: torch.nn.Module, info):
    # What is recorded stays as it is: the layer's tensors get loaders of the reload.
    with replacing("restore_layer_refs(param, layer)"):
        restore_layer_refs(to_meta_tensor(param), layer)
    with replacing("restore_layer_refs(buffer, layer)"):
        restore_layer_refs(to_meta_tensor(buffer), layer)
    with after("for name, buffer in restore_buffers.items(): $$$"):
        # What was not recorded and yet is loaded: a load must not write to it before
        # the layer is complete.
        for name, tensor in get_layer_tensors(layer).items():
            if name not in SKIP_LOAD_TENSORS and not tensor.is_meta:
                setattr(layer, name, to_meta_tensor(tensor))


def materialize_layer(layer: torch.nn.Module, info):
    """
    In a reload they begin with what a tensor that does not arrive is to hold.
    """
    with replacing("if name not in SKIP_TENSORS and tensor.is_meta: $$$"):
        if name not in SKIP_LOAD_TENSORS and tensor.is_meta:
            materialized = materialize_meta_tensor(tensor)
            if (initial := _initial_content(layer, info, name, tensor)) is not None:
                materialized.data.copy_(initial)
            setattr(layer, name, materialized)


def _initial_content(
    layer: torch.nn.Module,
    info: LayerReloadingInfo,
    name: str,
    metadata: torch.Tensor,
) -> torch.Tensor | None:
    """What a tensor holds before it is loaded again; None if nothing is known.

    Post-load processing that can run over what an earlier load left gets that. Any
    other must find in what is not loaded, as padding, what it found the first time.
    """
    if info.reload is None:
        return None
    kernel = info.reload.kernel_tensor(layer, name)
    kept = bytes_in_model_format(kernel, metadata)
    created = info.creation_values.get(name)
    if created is None or name in layer._buffers or processing_keeps_left_out(layer):
        return kept if kept is not None else created
    return created
