# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The quantizers of the test checkpoints, and the references they are read by."""

import pytest
import torch

from tests.quantized_weights import (
    dequantize_fp8,
    dequantize_nvfp4,
    pack_e2m1,
    quantize_fp8,
    quantize_nvfp4,
    unpack_e2m1,
)

SEED = 20


def _random_weight(rows: int, cols: int) -> torch.Tensor:
    print(f"seed {SEED}")
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(SEED))


@pytest.mark.parametrize("rows", [1, 127, 128, 192])
@pytest.mark.parametrize("cols", [1, 128, 200])
def test_fp8_has_a_scale_for_every_block_started(rows: int, cols: int):
    weight, scale = quantize_fp8(_random_weight(rows, cols))

    assert (weight.shape, weight.dtype) == ((rows, cols), torch.float8_e4m3fn)
    assert scale.shape == (-(-rows // 128), -(-cols // 128))


def test_fp8_blocks_at_the_edges_have_their_own_scales():
    original = torch.ones(192, 200)
    original[128:, :128] = 2
    original[:128, 128:] = 4
    original[128:, 128:] = 8

    weight, scale = quantize_fp8(original)

    assert torch.equal(scale * 448, torch.tensor([[1.0, 4.0], [2.0, 8.0]]))
    assert torch.equal(dequantize_fp8(weight, scale), original.bfloat16())


@pytest.mark.parametrize(
    "scale_dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu]
)
def test_fp8_comes_back_within_half_a_step(scale_dtype: torch.dtype):
    original = _random_weight(192, 200)

    weight, scale = quantize_fp8(original, scale_dtype)

    assert scale.dtype == scale_dtype
    # Half a step of E4M3 is a sixteenth, or 2**-10 where it is subnormal; rounding to
    # bfloat16 adds 2**-8.
    allowed = original.abs() * (2**-4 + 2**-8) + scale.float().max() * 2**-10
    error = (dequantize_fp8(weight, scale).float() - original).abs()
    assert bool((error <= allowed).all())


def test_e8m0_scales_are_the_next_power_of_two():
    original = torch.full((128, 256), 448.0)
    original[:, 128:] = 449.0

    _, scale = quantize_fp8(original, torch.float8_e8m0fnu)

    assert scale.float().tolist() == [[1.0, 2.0]]


def test_low_nibble_is_the_even_column():
    packed = pack_e2m1(torch.tensor([[0x1, 0x2, 0xF, 0x0]]))

    assert packed.dtype == torch.uint8
    assert packed.tolist() == [[0x21, 0x0F]]
    assert unpack_e2m1(packed).tolist() == [[0x1, 0x2, 0xF, 0x0]]


def test_nvfp4_code_has_sign_exponent_and_mantissa():
    packed = pack_e2m1(torch.arange(16)[None])
    one = torch.ones(1, 1, dtype=torch.float8_e4m3fn)

    values = dequantize_nvfp4(packed, one, torch.tensor(1.0))

    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values.tolist() == [positive + [-value for value in positive]]
    assert values.signbit().tolist() == [[False] * 8 + [True] * 8]


def test_nvfp4_scales_apply_to_sixteen_columns_and_to_all():
    packed = pack_e2m1(torch.full((2, 32), 2))
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(torch.float8_e4m3fn)

    values = dequantize_nvfp4(packed, scale, torch.tensor(0.5))

    groups = values.unflatten(1, (2, 16))
    assert torch.equal(groups, (scale.bfloat16() / 2)[..., None].expand_as(groups))


def test_nvfp4_uses_every_code_and_comes_back_within_half_a_step():
    original = _random_weight(192, 256)

    packed, scale, scale_2 = quantize_nvfp4(original)

    assert (packed.shape, packed.dtype) == ((192, 128), torch.uint8)
    assert (scale.shape, scale.dtype) == ((192, 16), torch.float8_e4m3fn)
    assert (scale_2.shape, scale_2.dtype) == ((), torch.float32)
    assert unpack_e2m1(packed).unique().tolist() == list(range(16))
    # The widest gap between E2M1 values is 2, so half a step is at most the scale;
    # rounding to bfloat16 adds 2**-8.
    step = (scale.float() * scale_2).repeat_interleave(16, dim=1)
    allowed = step + original.abs() * 2**-8
    error = (dequantize_nvfp4(packed, scale, scale_2).float() - original).abs()
    assert bool((error <= allowed).all())
