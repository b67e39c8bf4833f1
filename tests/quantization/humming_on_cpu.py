# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Humming's package on a CPU: its schemas as they are, its CUDA operators stood in for.

A stand-in for an operator gives as many bytes as the operator, in another order.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import torch

_HUMMING = "vllm.model_executor.layers.quantization"


@contextmanager
def humming_on_cpu() -> Iterator[None]:
    """What post-load processing with Humming needs of a GPU."""
    import humming.ops as ops
    from humming.schema import HummingWeightSchema

    from vllm.utils import humming as package

    fallback = "check_and_fallback_input_schema"
    with (
        mock.patch.object(torch.cuda, "device", nullcontext),
        mock.patch.object(torch.accelerator, "current_device_index", lambda: 0),
        mock.patch.object(ops, "unpack_weight", _unpack),
        mock.patch.object(ops, "pack_weight", _pack),
        mock.patch.object(torch.Tensor, "cuda", _where_it_is),
        mock.patch.object(HummingWeightSchema, "requant_tensors", _requantize),
        mock.patch.object(package, "num_compute_units", lambda index: 1),
        mock.patch.object(package, "prepare_and_transform_humming_tensors", _transform),
        mock.patch.object(import_module(f"{_HUMMING}.humming"), fallback, _as_it_is),
        mock.patch.object(
            import_module(f"{_HUMMING}.utils.humming.linear"), fallback, _as_it_is
        ),
        mock.patch.object(
            import_module(f"{_HUMMING}.utils.humming.schema"), fallback, _as_it_is
        ),
    ):
        yield


def _as_it_is(input_schema: Any, **others: Any) -> Any:
    """The choice that is made where the device supports the schema."""
    return input_schema


def _where_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    packed = torch.zeros_like(codes[..., :: 32 // bits], dtype=torch.int32)
    for place in range(32 // bits):
        packed |= codes[..., place :: 32 // bits].to(torch.int32) << place * bits
    return packed


def _unpack(weight: torch.Tensor, bits: int) -> torch.Tensor:
    codes = [weight >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)]
    return torch.stack(codes, -1).flatten(-2)


def _requantize(
    schema: Any,
    tensors: dict[str, torch.Tensor],
    target_weight_schema: Any,
    param_dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    """Eight bits and a scale for each row; without a bias, as the real one."""
    del schema, target_weight_schema
    codes = _unpack(tensors["weight"], 4).to(torch.uint8)
    return {
        "weight": (codes * 16).contiguous().view(torch.int32),
        "weight_scale": tensors["weight_scale"][..., :1].to(param_dtype).contiguous(),
    }


def _transform(
    tensors: dict[str, torch.Tensor],
    shape_n: int,
    shape_k: int,
    weight_schema: Any,
    input_schema: Any,
    has_bias: bool = False,
    **others: Any,
) -> tuple[tuple[int, int, str, str], dict[str, torch.Tensor]]:
    """A layer configuration, and the tensors in another layout."""
    from humming.config import WeightScale2Type

    names = ["weight", "weight_scale"]
    names += ["zero_point"] * weight_schema.has_zero_point
    has_second = weight_schema.weight_scale_2_type != WeightScale2Type.NONE
    names += ["weight_scale_2"] * has_second + ["bias"] * has_bias
    config = shape_n, shape_k, str(weight_schema), str(input_schema)
    return config, {name: _rearranged(tensors[name]) for name in names}


def _rearranged(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return tensor
    return tensor.transpose(-1, -2).contiguous()
