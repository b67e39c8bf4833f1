# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Triton kernels that unpack the rows of a weight in place.

See `packed_rows` for the layout. One program unpacks one row. It reads the whole row's
packed bytes, waits until all of its threads have, and only then writes the row.
"""

import torch

from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
    _e2m1_inline,
)
from vllm.triton_utils import HAS_TRITON, tl, triton


def can_use_triton(weight: torch.Tensor) -> bool:
    """Whether the kernels run where a weight is: on CUDA and ROCm."""
    return HAS_TRITON and weight.is_cuda


@triton.jit
def _e4m3_to_float(code):
    """Gives an E4M3 byte its value, on devices with and without such a type."""
    bits = code.to(tl.int32)
    normal_bits = ((bits & 0x7F) << 20) + (120 << 23)
    normal = normal_bits.to(tl.float32, bitcast=True)
    subnormal = (bits & 0x7).to(tl.float32) * 0.001953125
    value = tl.where((bits & 0x78) == 0, subnormal, normal)
    value = tl.where((bits & 0x7F) == 0x7F, float("nan"), value)
    return tl.where((bits & 0x80) != 0, -value, value)


@triton.jit
def _e8m0_to_float(code):
    """Gives an E8M0 byte its value, a power of two."""
    bits = code.to(tl.int32)
    value_bits = tl.where(bits == 0, 0x00400000, bits << 23)
    value = value_bits.to(tl.float32, bitcast=True)
    return tl.where(bits == 0xFF, float("nan"), value)


@triton.jit
def _fp8_rows_kernel(
    packed_ptr,
    row_ptr,
    scale_ptr,
    cols,
    packed_stride,
    row_stride,
    scale_stride,
    row_offset,
    col_offset,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, WIDTH)
    inside = col < cols
    code = tl.load(packed_ptr + row * packed_stride + col, mask=inside, other=0)
    scale_row = (row + row_offset) // BLOCK_ROWS
    scale_col = (col + col_offset) // BLOCK_COLS
    scale = tl.load(
        scale_ptr + scale_row * scale_stride + scale_col, mask=inside, other=0.0
    )
    value = (_e4m3_to_float(code) * scale).to(row_ptr.dtype.element_ty)
    tl.debug_barrier()
    tl.store(row_ptr + row * row_stride + col, value, mask=inside)


def unpack_fp8_rows(
    rows: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int],
    offset: tuple[int, int],
) -> None:
    """Unpacks rows of FP8 weights in place.

    Args:
        rows: [rows, cols] of the runtime dtype, with the FP8 row at the start of each.
        scale: [scale rows, scale columns], float32.
        block: Rows and columns that share a scale.
        offset: Rows and columns between the start of the first scale's block and the
            first row and column.
    """
    packed = rows.view(torch.uint8)
    count, cols = rows.shape
    _fp8_rows_kernel[(count,)](
        packed,
        rows,
        scale,
        cols,
        packed.stride(0),
        rows.stride(0),
        scale.stride(0),
        *offset,
        BLOCK_ROWS=block[0],
        BLOCK_COLS=block[1],
        WIDTH=triton.next_power_of_2(cols),
        num_warps=8,
    )


@triton.jit
def _fp4_rows_kernel(
    packed_ptr,
    row_ptr,
    scale_ptr,
    scale_2_ptr,
    cols,
    packed_stride,
    row_stride,
    scale_stride,
    GROUP: tl.constexpr,
    E8M0_SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    byte = tl.arange(0, WIDTH // 2)
    code = tl.load(
        packed_ptr + row * packed_stride + byte, mask=byte < cols // 2, other=0
    )
    value = tl.interleave(_e2m1_inline(code & 0xF), _e2m1_inline(code >> 4))

    col = tl.arange(0, WIDTH)
    inside = col < cols
    scale_code = tl.load(
        scale_ptr + row * scale_stride + col // GROUP, mask=inside, other=0
    )
    if E8M0_SCALE:
        scale = _e8m0_to_float(scale_code)
    else:
        scale = _e4m3_to_float(scale_code) * tl.load(scale_2_ptr)
    value = (value * scale).to(row_ptr.dtype.element_ty)
    tl.debug_barrier()
    tl.store(row_ptr + row * row_stride + col, value, mask=inside)


def unpack_fp4_rows(
    rows: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor | None
) -> None:
    """Unpacks rows of E2M1 weights in place.

    Args:
        rows: [rows, cols] of the runtime dtype, with the packed row at the start of
            each, the even column in the low four bits.
        scale: [rows, cols / 16] in `float8_e4m3fn`, or [rows, cols / 32] in
            `float8_e8m0fnu`.
        scale_2: One element, float32, with E4M3 scales; None with E8M0 scales.
    """
    packed = rows.view(torch.uint8)
    count, cols = rows.shape
    e8m0 = scale.dtype == torch.float8_e8m0fnu
    scale_bytes = scale.view(torch.uint8)
    _fp4_rows_kernel[(count,)](
        packed,
        rows,
        scale_bytes,
        scale_bytes if scale_2 is None else scale_2,
        cols,
        packed.stride(0),
        rows.stride(0),
        scale_bytes.stride(0),
        GROUP=32 if e8m0 else 16,
        E8M0_SCALE=e8m0,
        WIDTH=triton.next_power_of_2(cols),
        num_warps=8,
    )
