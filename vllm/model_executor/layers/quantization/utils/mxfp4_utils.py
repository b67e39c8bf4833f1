# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from typing import Any

import torch

from vllm.model_executor.utils import replace_parameter


def keep_triton_tensor(layer: torch.nn.Module, name: str, tensor: Any) -> Any:
    """Puts a tensor of triton_kernels on the storage of the parameter it was made of.

    The parameter stays registered, and holds the tensor's data; the tensor is kept
    beside it, for `triton_weight`. Where a reload makes it anew, the first one stays,
    for kernels and CUDA graphs that read it: it is on the storage of the first
    parameter, which a reload fills.

    Args:
        layer: Layer that has the parameter; without one, a parameter is registered.
        name: Its name.
        tensor: ``triton_kernels.tensor.Tensor`` in the layout of the kernel.

    Returns:
        The tensor that kernels must read.
    """
    param = replace_parameter(layer, name, tensor.storage.data)
    assert param is not None
    held = getattr(layer, f"{name}_triton", None)
    if held is None or not _same_layout(held.storage.data, param):
        held = tensor
        held.parameter = param
        setattr(layer, f"{name}_triton", held)
    if held.parameter is param:
        held.storage.data = param.data
    return held


def triton_weight(layer: torch.nn.Module, name: str) -> Any:
    """What a kernel reads of a weight that may be in a layout of triton_kernels.

    Args:
        layer: Layer that has the weight.
        name: Name of its parameter.

    Returns:
        The ``triton_kernels.tensor.Tensor`` over the parameter's storage if the weight
        is in such a layout; else the parameter.
    """
    tensor = getattr(layer, f"{name}_triton", None)
    return getattr(layer, name) if tensor is None else tensor


def _same_layout(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (first.shape, first.stride(), first.dtype, first.device) == (
        second.shape,
        second.stride(),
        second.dtype,
        second.device,
    )
