# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block-FP8 and NVFP4 weights as checkpoints store them, and what they stand for.

Plain PyTorch that shares nothing with vLLM, so that tests have a reference of their
own. Products are taken in float32 and rounded once to bfloat16.

    Block-FP8   weight  [rows, cols]                      float8_e4m3fn
                scale   [ceil(rows/128), ceil(cols/128)]  float32, bfloat16 or e8m0

    NVFP4       packed  [rows, cols/2]   uint8, even column in the low four bits
                scale   [rows, cols/16]  float8_e4m3fn
                scale_2 []               float32
"""

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
FP8_BLOCK = 128
"""Rows and columns that share one scale of a block-FP8 weight."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the E2M1 codes 0 to 7; codes 8 to 15 are their negatives."""
NVFP4_GROUP = 16
"""Columns that share one scale of an NVFP4 weight."""


def quantize_fp8(
    weight: torch.Tensor, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes a weight to block-FP8. Blocks at the edges may be partial.

    Args:
        weight: [rows, cols], floating point.
        scale_dtype: Of the scales. `float8_e8m0fnu` holds powers of two only, and
            rounds up to the next.

    Returns:
        The weight, [rows, cols] in `float8_e4m3fn`, and its scales,
        [ceil(rows/128), ceil(cols/128)] in `scale_dtype`.
    """
    rows, cols = weight.shape
    padding = (0, -cols % FP8_BLOCK, 0, -rows % FP8_BLOCK)
    padded = torch.nn.functional.pad(weight.float(), padding)
    blocks = padded.unflatten(1, (-1, FP8_BLOCK)).unflatten(0, (-1, FP8_BLOCK))
    exact = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-6) / FP8_MAX
    if scale_dtype == torch.float8_e8m0fnu:
        exact = exact.log2().ceil().exp2()
    scale = exact.to(scale_dtype)
    scaled = weight.float() / _expand_fp8_scale(scale, rows, cols)
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def dequantize_fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Gives the bfloat16 weight that a block-FP8 weight stands for.

    Args:
        weight: [rows, cols], `float8_e4m3fn`.
        scale: [ceil(rows/128), ceil(cols/128)], any floating-point dtype.

    Returns:
        [rows, cols], bfloat16.
    """
    return (weight.float() * _expand_fp8_scale(scale, *weight.shape)).bfloat16()


def _expand_fp8_scale(scale: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Gives every element its scale: [rows, cols], float32."""
    row_blocks = torch.arange(rows) // FP8_BLOCK
    col_blocks = torch.arange(cols) // FP8_BLOCK
    return scale.float()[row_blocks][:, col_blocks]


def quantize_nvfp4(
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantizes a weight to NVFP4.

    Args:
        weight: [rows, cols] with cols a multiple of 16, floating point.

    Returns:
        The packed weight, its scales and its global scale; see the module's
        docstring.
    """
    groups = weight.float().unflatten(1, (-1, NVFP4_GROUP))
    scale_2 = groups.abs().amax() / (E2M1_VALUES[-1] * FP8_MAX)
    scale = (groups.abs().amax(dim=2) / E2M1_VALUES[-1] / scale_2).to(FP8)
    scaled = groups / (scale.float() * scale_2).clamp(min=1e-12)[..., None]
    values = torch.tensor(E2M1_VALUES)
    midpoints = (values[:-1] + values[1:]) / 2
    codes = torch.bucketize(scaled.abs(), midpoints) + 8 * scaled.signbit()
    return pack_e2m1(codes.flatten(1)), scale, scale_2


def pack_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """Packs E2M1 codes, the even column into the low four bits.

    Args:
        codes: [rows, cols] with cols even, integers from 0 to 15.

    Returns:
        [rows, cols/2], uint8.
    """
    codes = codes.to(torch.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Gives the codes that `pack_e2m1` packed: [rows, cols], uint8."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1)


def dequantize_nvfp4(
    packed: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor
) -> torch.Tensor:
    """Gives the bfloat16 weight that an NVFP4 weight stands for.

    Args:
        packed: [rows, cols/2], uint8.
        scale: [rows, cols/16], `float8_e4m3fn`.
        scale_2: One element, float32.

    Returns:
        [rows, cols], bfloat16.
    """
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    elements = values[unpack_e2m1(packed).long()]
    scales = (scale.float() * scale_2).repeat_interleave(NVFP4_GROUP, dim=1)
    return (elements * scales).bfloat16()
