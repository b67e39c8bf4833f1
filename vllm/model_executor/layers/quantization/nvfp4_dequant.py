# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Four-bit checkpoints of linear layers that run in bfloat16.

    NVFP4, ModelOpt   weight               [rows, cols/2]   uint8
                      weight_scale         [rows, cols/16]  float8_e4m3fn
                      weight_scale_2       one element      float32

    compressed-tensors names the first weight_packed, and the last weight_global_scale;
    that one is the reciprocal.

    MXFP4, Quark      weight               [rows, cols/2]   uint8
                      weight_scale         [rows, cols/32]  e8m0, or its bytes

A byte holds two E2M1 codes, the even column in the low four bits. See `row_dequant` for
how they load.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import torch

from vllm.model_executor.layers.quantization.utils import row_dequant_tables
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    GroupScale,
    ScaleLoading,
    ShardScale,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import LoadRecord
from vllm.model_executor.layers.quantization.utils.row_dequant_kernels import (
    can_use_triton,
    unpack_fp4_rows,
)


def dequantize_nvfp4(
    packed: torch.Tensor,
    scale: torch.Tensor,
    scale_2: torch.Tensor | None,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Gives the weight that an NVFP4 or MXFP4 weight stands for.

    Each weight is `fp32(e2m1) * (fp32(scale) * scale_2)`, rounded once to the dtype.

    Args:
        packed: [rows, cols / 2], uint8; in each byte the even column in the low four
            bits, and the odd column in the high four.
        scale: [rows, cols / 16] in `float8_e4m3fn` (NVFP4), or [rows, cols / 32] in
            `float8_e8m0fnu` (MXFP4); not swizzled.
        scale_2: NVFP4's scale of the whole weight, one element, float32; None for
            MXFP4.
        dtype: Of the result.

    Returns:
        [rows, cols].

    Raises:
        ValueError: The shapes or dtypes do not go together.
    """
    rows, half = packed.shape
    group = _group_size(scale)
    e4m3 = scale.dtype == torch.float8_e4m3fn
    if scale.shape != (rows, 2 * half // group) or e4m3 == (scale_2 is None):
        raise ValueError(
            f"found packed weights of shape {tuple(packed.shape)} with scales of dtype "
            f"{scale.dtype} and shape {tuple(scale.shape)}, and scale_2 {scale_2}; "
            f"expected scales of shape {(rows, 2 * half // group)}, and scale_2 with "
            "E4M3 scales only"
        )
    weight = torch.empty(rows, 2 * half, dtype=dtype, device=packed.device)
    weight.view(torch.uint8)[:, :half].copy_(packed)
    unpack_fp4(weight, scale, scale_2)
    return weight


def _group_size(scale: torch.Tensor) -> int:
    if scale.dtype == torch.float8_e4m3fn:
        return 16
    if scale.dtype == torch.float8_e8m0fnu:
        return 32
    raise ValueError(
        f"found scales of dtype {scale.dtype}; expected float8_e4m3fn (NVFP4) or "
        "float8_e8m0fnu (MXFP4)"
    )


def unpack_fp4(
    rows: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor | None
) -> None:
    """Unpacks rows of E2M1 weights in place, on any device.

    Args:
        rows: [rows, cols] of the runtime dtype, with the packed row at the start of
            each.
        scale: As for `dequantize_nvfp4`.
        scale_2: As for `dequantize_nvfp4`.
    """
    if can_use_triton(rows):
        unpack_fp4_rows(rows, scale, scale_2)
    else:
        row_dequant_tables.unpack_fp4_rows(rows, scale, scale_2)


class Fp4Format:
    """How NVFP4 and MXFP4 weights are scaled, and unpacked."""

    scales: ClassVar[dict[str, type[ScaleLoading]]] = {
        "weight_scale": GroupScale,
        "weight_scale_2": ShardScale,
        "weight_global_scale": ShardScale,
    }

    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        if _is_mxfp4(record, shard):
            return [frozenset(["weight_scale"])]
        return [
            frozenset(["weight_scale", "weight_scale_2"]),
            frozenset(["weight_scale", "weight_global_scale"]),
        ]

    def unpack(self, layer: Any, rows: torch.Tensor, shard: int) -> None:
        record = layer.weight.record
        scale = layer.weight_scale.slot(shard)
        scale_2: torch.Tensor | None = None
        if _is_mxfp4(record, shard):
            scale = scale.view(torch.float8_e8m0fnu)[:, : rows.shape[1] // 32]
        elif ("weight_global_scale", shard) in record.scales:
            scale_2 = layer.weight_global_scale.slot(shard).reciprocal()
        else:
            scale_2 = layer.weight_scale_2.slot(shard)
        unpack_fp4(rows, scale, scale_2)


def _is_mxfp4(record: LoadRecord, shard: int) -> bool:
    arrival = record.scales.get(("weight_scale", shard))
    return arrival is not None and arrival.dtype == torch.float8_e8m0fnu
