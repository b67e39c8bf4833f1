# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""FP8 checkpoints of linear layers that run in bfloat16.

    weight                [rows, cols]                      float8_e4m3fn
    weight_scale_inv      [ceil(rows/128), ceil(cols/128)]  float32, bfloat16 or e8m0
    weight_channel_scale  [rows], [rows, 1] or one element  the same

A layer needs one of the scales. Checkpoints name the second, and Quark and ModelOpt
name either, weight_scale. Blocks may have another size: those of MXFP8 are 1 by 32, and
their scales the bytes of e8m0. See `row_dequant` for how they load.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import torch

from vllm.model_executor.layers.quantization.utils import row_dequant_tables
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    BlockScale,
    RowScale,
    ScaleLoading,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import LoadRecord
from vllm.model_executor.layers.quantization.utils.row_dequant_kernels import (
    can_use_triton,
    unpack_fp8_rows,
)

_WHOLE_ROW = 1 << 30


def unpack_fp8(
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


class Fp8Format:
    """How FP8 weights are scaled, and unpacked."""

    scales: ClassVar[dict[str, type[ScaleLoading]]] = {
        "weight_scale_inv": BlockScale,
        "weight_channel_scale": RowScale,
    }

    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        return [frozenset([name]) for name in self.scales]

    def unpack(self, layer: Any, rows: torch.Tensor, shard: int) -> None:
        record = layer.weight.record
        arrival = record.scales.get(("weight_scale_inv", shard))
        if arrival is None:
            unpack_fp8(rows, layer.weight_channel_scale.slot(shard), (1, _WHOLE_ROW))
            return
        offset = arrival.row_offset, arrival.col_offset
        unpack_fp8(rows, layer.weight_scale_inv.slot(shard), record.block, offset)
