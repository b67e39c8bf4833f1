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

from collections.abc import Callable, Collection
from typing import Any, cast

import torch

from vllm.model_executor.layers.linear import (
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import QuantizationMethods
from vllm.model_executor.layers.quantization.row_dequant import (
    RowDequantConfig,
    RowDequantLinearMethod,
)
from vllm.model_executor.layers.quantization.utils import row_dequant_tables
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    GroupScale,
    ScaleLoading,
    ShardScale,
    UnusedScale,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import LoadRecord, Run
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
    unpack_fp4_run(weight, scale, scale_2)
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


def unpack_fp4_run(
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


class Nvfp4DequantConfig(RowDequantConfig):
    """For layers that a checkpoint may store in four bits and that run in bfloat16."""

    def get_name(self) -> QuantizationMethods:
        return cast(QuantizationMethods, "nvfp4_dequant")


@register_weight_loader_v2_supported_method
class Nvfp4DequantLinearMethod(RowDequantLinearMethod):
    """Loads NVFP4, MXFP4 or unquantized weights, and runs the layer unquantized."""

    packed_dtype = torch.uint8
    values_per_byte = 2
    scale_names = (
        "weight_scale",
        "weight_scale_2",
        "weight_global_scale",
        "input_scale",
    )
    dummy_scales = ("weight_scale", "weight_scale_2")

    @classmethod
    def parameter_for(cls, name: str, loaded_weight: torch.Tensor) -> str:
        """Names the parameter into which a checkpoint tensor is loaded.

        Args:
            name: What the checkpoint calls the tensor, after the layer's name.
            loaded_weight: The tensor.

        Returns:
            Name of a parameter of the layer.

        Raises:
            ValueError: No parameter takes such a tensor.
        """
        aliases = {"weight_packed": "weight", "input_global_scale": "input_scale"}
        target = aliases.get(name, name)
        if target in ("weight", *cls.scale_names):
            return target
        raise ValueError(
            f"found a checkpoint tensor {name!r} of dtype {loaded_weight.dtype} and "
            f"shape {tuple(loaded_weight.shape)}; expected one of "
            f"{('weight', *cls.scale_names, *aliases)} of a four-bit layer"
        )

    def create_scales(
        self,
        layer: Any,
        record: LoadRecord,
        weight_loader: Callable,
        ranks: tuple[int, int],
    ) -> list[ScaleLoading]:
        if record.cols % 16:
            raise ValueError(
                f"{record.prefix}.weight: found {record.cols} columns on this rank; "
                "expected a multiple of 16, which share a scale of NVFP4: choose "
                "another tensor-parallel size"
            )
        global_scale = ShardScale.make(record, "weight_global_scale", weight_loader)
        # Layerwise reload must not wait for it where weight_scale_2 comes instead.
        global_scale.weight_loader_numel = 0
        return [
            GroupScale.make(record, "weight_scale", weight_loader),
            ShardScale.make(record, "weight_scale_2", weight_loader),
            global_scale,
            UnusedScale.make(record, "input_scale", weight_loader),
        ]

    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        arrival = record.scales.get(("weight_scale", shard))
        if arrival is not None and arrival.dtype == torch.float8_e8m0fnu:
            return [frozenset(["weight_scale"])]
        return [
            frozenset(["weight_scale", "weight_scale_2"]),
            frozenset(["weight_scale", "weight_global_scale"]),
        ]

    def unpack(self, layer: Any, rows: torch.Tensor, run: Run) -> None:
        scales = layer.weight.record.scales
        rows = rows[run.start : run.stop]
        scale = layer.weight_scale.data[run.start : run.stop]
        scale_2: torch.Tensor | None = None
        if scales["weight_scale", run.shard].dtype == torch.float8_e8m0fnu:
            scale = scale.view(torch.float8_e8m0fnu)[:, : rows.shape[1] // 32]
        elif ("weight_global_scale", run.shard) in scales:
            scale_2 = layer.weight_global_scale.slot(run.shard).reciprocal()
        else:
            scale_2 = layer.weight_scale_2.slot(run.shard)
        unpack_fp4_run(rows, scale, scale_2)


Nvfp4DequantConfig.method = Nvfp4DequantLinearMethod
