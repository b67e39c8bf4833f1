# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Every format in which a checkpoint may have one layer of the tiny GLM-5.x.

A row of the matrix is a layer in a format, in a checkpoint whose other layers are in
bfloat16. What it stands for is taken from `tests.quantized_weights`, and shares nothing
with vLLM. It runs on stock vLLM, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from tests.glm5_checkpoint import Checkpoint, Tensors
from tests.glm5_tiny import (
    TinyGlm5,
    WeightFormat,
    differences,
    expected_parameters,
    load_from_stream,
    make_checkpoint,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
)
from tests.quantized_weights import (
    E2M1_VALUES,
    FP8,
    FP8_MAX,
    dequantize_fp8,
    dequantize_nvfp4,
    pack_e2m1,
    quantize_fp8,
    quantize_nvfp4,
    unpack_e2m1,
)

EXACT = "exact"

KDA = "layers.0.self_attn"
MLA = "layers.1.self_attn"


class Stored(NamedTuple):
    """The tensors of a layer, by the ends of their names, and what they stand for."""

    tensors: Tensors
    weight: torch.Tensor


Store = Callable[[torch.Tensor], Stored]


class Row(NamedTuple):
    """A layer in a format.

    Attributes:
        layer: Its name in the text model.
        store: Puts a weight into the format.
        declared: What the checkpoint's config says of the projections.
        refusal: Pattern of the error, if the layer cannot have this format.
    """

    layer: str
    store: Store
    declared: WeightFormat = WeightFormat.FP8
    refusal: str = ""


def bf16(weight: torch.Tensor) -> Stored:
    plain = weight.bfloat16()
    return Stored({"weight": plain}, plain)


def fp8(
    name: str = "weight_scale_inv",
    dtype: torch.dtype = torch.float32,
    *,
    scale_first: bool = False,
    four_dimensional: bool = False,
    input_scale: bool = False,
) -> Store:
    """Block-FP8."""

    def store(weight: torch.Tensor) -> Stored:
        packed, scale = quantize_fp8(weight, dtype)
        expected = dequantize_fp8(packed, scale)
        if four_dimensional:
            scale = scale[:, None, :, None]
        tensors = {"weight": packed, name: scale}
        if scale_first:
            tensors = dict(reversed(tensors.items()))
        if input_scale:
            tensors["input_scale"] = torch.tensor(0.02)
        return Stored(tensors, expected)

    return store


def fp8_rows(shape: tuple[int, ...]) -> Store:
    """FP8 with a scale for each row, or one for all, in this shape."""

    def store(weight: torch.Tensor) -> Stored:
        rows = shape == () or shape == (1,)
        amax = weight.abs().amax() if rows else weight.abs().amax(dim=1, keepdim=True)
        scale = amax / FP8_MAX
        packed = (weight / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)
        expected = (packed.float() * scale).bfloat16()
        return Stored(
            {"weight": packed, "weight_scale": scale.reshape(shape)}, expected
        )

    return store


def fp8_without_scale(weight: torch.Tensor) -> Stored:
    packed, scale = quantize_fp8(weight)
    return Stored({"weight": packed}, dequantize_fp8(packed, scale))


def fp8_with_nvfp4_scale(weight: torch.Tensor) -> Stored:
    packed, scale = quantize_fp8(weight)
    group_scale = quantize_nvfp4(weight)[1]
    tensors = {"weight_scale": group_scale, "weight": packed}
    return Stored(tensors, dequantize_fp8(packed, scale))


def bf16_with_stale_scale(weight: torch.Tensor) -> Stored:
    stored = bf16(weight)
    stored.tensors["weight_scale_inv"] = quantize_fp8(weight)[1]
    return stored


def nvfp4(*, scales_first: bool = False, input_scale: bool = False) -> Store:
    """NVFP4 under ModelOpt's names."""

    def store(weight: torch.Tensor) -> Stored:
        packed, scale, scale_2 = quantize_nvfp4(weight)
        tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": scale_2}
        if input_scale:
            tensors["input_scale"] = torch.tensor(0.02)
        if scales_first:
            tensors = dict(reversed(tensors.items()))
        return Stored(tensors, dequantize_nvfp4(packed, scale, scale_2))

    return store


def compressed_tensors_nvfp4(weight: torch.Tensor) -> Stored:
    """NVFP4 under the names of compressed-tensors, with the reciprocal scale."""
    packed, scale, scale_2 = quantize_nvfp4(weight)
    reciprocal = scale_2.reciprocal().reshape(1)
    tensors = {
        "weight_packed": packed,
        "weight_scale": scale,
        "weight_global_scale": reciprocal,
        "input_global_scale": torch.tensor([50.0]),
    }
    return Stored(tensors, dequantize_nvfp4(packed, scale, reciprocal.reciprocal()))


def mxfp4(weight: torch.Tensor) -> Stored:
    """MXFP4 as Quark has it: bytes of E8M0 scales, one for 32 columns."""
    groups = weight.unflatten(1, (-1, 32))
    exponent = groups.abs().amax(dim=2).log2().floor().int() - 2
    scaled = groups / exponent.float().exp2()[..., None]
    values = torch.tensor(E2M1_VALUES)
    midpoints = (values[:-1] + values[1:]) / 2
    codes = torch.bucketize(scaled.abs(), midpoints) + 8 * scaled.signbit()
    packed = pack_e2m1(codes.flatten(1))
    signed = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    elements = signed[unpack_e2m1(packed).long()].unflatten(1, (-1, 32))
    expected = (elements * exponent.float().exp2()[..., None]).flatten(1).bfloat16()
    scale = (exponent + 127).to(torch.uint8)
    return Stored({"weight": packed, "weight_scale": scale}, expected)


_NVFP4 = WeightFormat.NVFP4_W4A16
_PLAIN_TAKES_NO_FP8 = r"found dtype torch.float8_e4m3fn .* expected torch.bfloat16"

ROWS: dict[str, Row] = {
    "bf16": Row(f"{MLA}.q_b_proj", bf16),
    "bf16 in an nvfp4 checkpoint": Row(f"{MLA}.q_b_proj", bf16, _NVFP4),
    "fp8 weight_scale_inv": Row(f"{MLA}.q_b_proj", fp8()),
    "fp8 weight_scale": Row(f"{MLA}.q_b_proj", fp8("weight_scale")),
    "fp8 scale first": Row(f"{MLA}.q_b_proj", fp8(scale_first=True)),
    "fp8 bf16 scale": Row(f"{MLA}.q_b_proj", fp8(dtype=torch.bfloat16)),
    "fp8 e8m0 scale": Row(f"{MLA}.q_b_proj", fp8(dtype=torch.float8_e8m0fnu)),
    "fp8 four-dimensional scale": Row(
        f"{MLA}.q_b_proj", fp8("weight_scale", four_dimensional=True)
    ),
    "fp8 scale of each channel": Row(f"{MLA}.q_b_proj", fp8_rows((-1, 1))),
    "fp8 scale of each channel, flat": Row(f"{MLA}.q_b_proj", fp8_rows((-1,))),
    "fp8 scale of the tensor": Row(f"{MLA}.q_b_proj", fp8_rows(())),
    "fp8 scale of the tensor, one element": Row(f"{MLA}.q_b_proj", fp8_rows((1,))),
    "fp8 input_scale": Row(f"{MLA}.q_b_proj", fp8(input_scale=True)),
    "fp8 kv_b_proj": Row(f"{MLA}.kv_b_proj", fp8()),
    "fp8 wk": Row(f"{MLA}.indexer.wk", fp8()),
    "fp8 wk weight_scale": Row(f"{MLA}.indexer.wk", fp8("weight_scale")),
    "fp8 wq_b": Row(f"{MLA}.indexer.wq_b", fp8()),
    "fp8 o_proj of linear attention": Row(f"{KDA}.o_proj", fp8()),
    "nvfp4": Row(f"{MLA}.q_b_proj", nvfp4(), _NVFP4),
    "nvfp4 scales first": Row(f"{MLA}.q_b_proj", nvfp4(scales_first=True), _NVFP4),
    "nvfp4 input_scale": Row(f"{MLA}.q_b_proj", nvfp4(input_scale=True), _NVFP4),
    "nvfp4 o_proj": Row(f"{MLA}.o_proj", nvfp4(), _NVFP4),
    "nvfp4 kv_b_proj": Row(f"{MLA}.kv_b_proj", nvfp4(), _NVFP4),
    "nvfp4 wk": Row(f"{MLA}.indexer.wk", nvfp4(), _NVFP4),
    "fp8 wq_b that an nvfp4 checkpoint leaves alone": Row(
        f"{MLA}.indexer.wq_b", fp8(), _NVFP4
    ),
    "nvfp4 wq_b that the checkpoint leaves alone": Row(
        f"{MLA}.indexer.wq_b", nvfp4(), _NVFP4
    ),
    "nvfp4 o_proj of linear attention": Row(f"{KDA}.o_proj", nvfp4(), _NVFP4),
    "compressed-tensors nvfp4": Row(
        f"{MLA}.q_b_proj", compressed_tensors_nvfp4, _NVFP4
    ),
    "quark mxfp4": Row(f"{MLA}.q_b_proj", mxfp4, _NVFP4),
    "fp8 declared as nvfp4": Row(f"{MLA}.q_b_proj", fp8(), _NVFP4),
    "fp8 weight_scale in e8m0 declared as nvfp4": Row(
        f"{MLA}.q_b_proj", fp8("weight_scale", torch.float8_e8m0fnu), _NVFP4
    ),
    "nvfp4 declared as fp8": Row(f"{MLA}.q_b_proj", nvfp4()),
    "mxfp4 declared as fp8": Row(f"{MLA}.o_proj", mxfp4),
    "bf16 with a stale scale": Row(
        f"{MLA}.q_b_proj",
        bf16_with_stale_scale,
        refusal=r"found no packed weight for its weight_scale_inv",
    ),
    "fp8 without a scale": Row(
        f"{MLA}.q_b_proj",
        fp8_without_scale,
        refusal=r"q_b_proj\.weight.*found .* weight with no scale; expected it with",
    ),
    "fp8 with a scale of nvfp4": Row(
        f"{MLA}.q_b_proj",
        fp8_with_nvfp4_scale,
        refusal=r"q_b_proj\.weight.*float8_e4m3fn weight with weight_scale; expected",
    ),
    "fp8 q_proj of linear attention": Row(
        f"{KDA}.q_proj", fp8(), refusal=_PLAIN_TAKES_NO_FP8
    ),
    "fp8 q_proj of linear attention, scale first": Row(
        f"{KDA}.q_proj",
        fp8(scale_first=True),
        refusal=r"in_proj_qkvbfg_a\.weight_scale_inv, which the model does not have",
    ),
    "nvfp4 g_b_proj of linear attention": Row(
        f"{KDA}.g_b_proj",
        nvfp4(),
        _NVFP4,
        refusal=r"found dtype torch.uint8 .* expected torch.bfloat16",
    ),
    "fp8 MLP that is left alone": Row(
        "layers.0.mlp.gate_proj", fp8(), refusal=_PLAIN_TAKES_NO_FP8
    ),
}
"""Every row, by its name."""

LOADED_BY_STOCK = {
    "bf16",
    "bf16 in an nvfp4 checkpoint",
    "fp8 weight_scale_inv",
    "fp8 weight_scale",
    "fp8 scale first",
    "fp8 bf16 scale",
    "fp8 e8m0 scale",
    "fp8 wk",
    "fp8 o_proj of linear attention",
    "bf16 with a stale scale",
    "fp8 declared as nvfp4",
    "fp8 weight_scale in e8m0 declared as nvfp4",
}
"""Rows that vLLM 0.33.0 loads exactly. A stale scale it leaves unused, silently."""


def checkpoint_of(row: Row, spec: TinyGlm5) -> Checkpoint:
    """Gives a checkpoint in which one layer is in the format of a row."""
    base = make_checkpoint(replace(spec, weight_format=WeightFormat.BF16))
    layer = f"{spec.text_prefix}{row.layer}"
    shape = base.expected[f"{layer}.weight"].shape
    stored = row.store(torch.randn(shape, generator=torch.Generator().manual_seed(7)))
    tensors: Tensors = {}
    for name, tensor in base.tensors.items():
        if name == f"{layer}.weight":
            tensors |= {f"{layer}.{end}": held for end, held in stored.tensors.items()}
        else:
            tensors[name] = tensor
    expected = base.expected | {f"{layer}.weight": stored.weight}
    return Checkpoint(tensors, expected)


def expected_tensors(spec: TinyGlm5, checkpoint: Checkpoint) -> Tensors:
    """Gives what the text-only model must hold of the layers in the matrix."""

    def weight(layer: str) -> torch.Tensor:
        return checkpoint.expected[f"model.{layer}.weight"]

    fused = [weight(f"{MLA}.indexer.{part}") for part in ("wk", "weights_proj")]
    return {
        **expected_parameters(spec, checkpoint),
        f"model.{KDA}.o_proj.weight": weight(f"{KDA}.o_proj"),
        f"model.{MLA}.indexer.wq_b.weight": weight(f"{MLA}.indexer.wq_b"),
        f"model.{MLA}.indexer.wk_weights_proj.weight": torch.cat(fused),
    }


def outcome(row: Row, folders: Mapping[WeightFormat, Path]) -> str:
    """Loads a row, and says what came of it.

    Args:
        row: The row.
        folders: A checkpoint of each format, whose config.json is read.

    Returns:
        `EXACT`, the error, or what the model holds instead, without an error.
    """
    spec = TinyGlm5(weight_format=row.declared)
    checkpoint = checkpoint_of(row, spec)
    try:
        model = load_from_stream(spec, folders[row.declared], [checkpoint.weights])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    found = differences(model.module, expected_tensors(spec, checkpoint))
    return f"no error, but {found}" if found else EXACT


def outcomes(folders: Mapping[WeightFormat, Path]) -> dict[str, str]:
    """Gives the outcome of every row, in a process of its own."""
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        return {name: outcome(row, folders) for name, row in ROWS.items()}
