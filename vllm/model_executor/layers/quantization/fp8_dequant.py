# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""FP8 checkpoints of linear layers that run in bfloat16.

    weight            [rows, cols]                      float8_e4m3fn
    weight_scale_inv  [ceil(rows/128), ceil(cols/128)]  float32, bfloat16 or e8m0
    weight_scale      [rows], [rows, 1] or one element  the same

A layer needs one of the scales. Blocks may have another size: those of MXFP8 are 1 by
32, and their scales the bytes of e8m0. See `row_dequant` for how they load.
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
    BlockScale,
    RowScale,
    ScaleLoading,
    UnusedScale,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import LoadRecord, Run
from vllm.model_executor.layers.quantization.utils.row_dequant_kernels import (
    can_use_triton,
    unpack_fp8_rows,
)

_WHOLE_ROW = 1 << 30


def unpack_fp8_run(
    rows: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int],
    offset: tuple[int, int] = (0, 0),
) -> None:
    """Unpacks rows of FP8 weights in place, on any device.

    Each weight is `fp32(fp8) * scale`, rounded once to the runtime dtype.

    Args:
        rows: [rows, cols] of the runtime dtype, with the FP8 row at the start of each.
        scale: [scale rows, scale columns], float32.
        block: Rows and columns that share a scale.
        offset: Rows and columns between the start of the first scale's block and the
            first row and column.
    """
    if can_use_triton(rows):
        unpack_fp8_rows(rows, scale, block, offset)
    else:
        row_dequant_tables.unpack_fp8_rows(rows, scale, block, offset)


class Fp8DequantConfig(RowDequantConfig):
    """For layers that a checkpoint may store in FP8 and that run in bfloat16."""

    def __init__(self, weight_block_size: tuple[int, int] = (128, 128)) -> None:
        """Makes a config.

        Args:
            weight_block_size: Rows and columns that share a scale of block-FP8.
        """
        super().__init__()
        self.weight_block_size = weight_block_size

    def get_name(self) -> QuantizationMethods:
        return cast(QuantizationMethods, "fp8_dequant")


@register_weight_loader_v2_supported_method
class Fp8DequantLinearMethod(RowDequantLinearMethod):
    """Loads FP8 or unquantized weights, and runs the layer unquantized."""

    config: Fp8DequantConfig
    packed_dtype = torch.float8_e4m3fn
    values_per_byte = 1
    scale_names = ("weight_scale_inv", "weight_scale", "input_scale")
    dummy_scales = ("weight_scale_inv",)

    @classmethod
    def parameter_for(cls, name: str, loaded_weight: torch.Tensor) -> str:
        """Names the parameter into which a checkpoint tensor is loaded.

        Block scales are `weight_scale_inv`, and `weight_scale` with Quark and ModelOpt;
        scales of rows or of the whole weight are `weight_scale`.

        Args:
            name: What the checkpoint calls the tensor, after the layer's name.
            loaded_weight: The tensor.

        Returns:
            Name of a parameter of the layer.

        Raises:
            ValueError: No parameter takes such a tensor.
        """
        shape = tuple(loaded_weight.shape)
        if name == "weight_scale" and loaded_weight.dtype != torch.float8_e4m3fn:
            blocks = len(shape) == 4 or (len(shape) == 2 and shape[1] > 1)
            return "weight_scale_inv" if blocks else name
        if name in ("weight", "weight_scale_inv", "input_scale"):
            return name
        raise ValueError(
            f"found a checkpoint tensor {name!r} of dtype {loaded_weight.dtype} and "
            f"shape {shape}; expected weight, weight_scale_inv, weight_scale (not in "
            "E4M3, which is NVFP4's) or input_scale of an FP8 layer"
        )

    def create_scales(
        self,
        layer: Any,
        record: LoadRecord,
        weight_loader: Callable,
        ranks: tuple[int, int],
    ) -> list[ScaleLoading]:
        block = self.config.weight_block_size
        # For the loader of merged layers, which reckons in blocks.
        layer.weight_block_size = list(block)
        return [
            BlockScale.make(record, "weight_scale_inv", weight_loader, block, ranks),
            RowScale.make(record, "weight_scale", weight_loader),
            UnusedScale.make(record, "input_scale", weight_loader),
        ]

    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        return [frozenset(["weight_scale_inv"]), frozenset(["weight_scale"])]

    def unpack(self, layer: Any, rows: torch.Tensor, run: Run) -> None:
        record = layer.weight.record
        rows = rows[run.start : run.stop]
        arrival = record.scales.get(("weight_scale_inv", run.shard))
        if arrival is None:
            scale = layer.weight_scale.data[run.start : run.stop]
            unpack_fp8_run(rows, scale, (1, _WHOLE_ROW))
            return
        offset = run.offset + arrival.row_offset, arrival.col_offset
        scale = layer.weight_scale_inv.slot(run.shard)
        unpack_fp8_run(rows, scale, self.config.weight_block_size, offset)


Fp8DequantConfig.method = Fp8DequantLinearMethod
