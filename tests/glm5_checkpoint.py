# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Checkpoints of the tiny GLM-5.x, and what each of their weights stands for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.glm5_config import TinyGlm5, WeightFormat, hf_config
from tests.glm5_weights import Weight, checkpoint_weights
from tests.quantized_weights import (
    dequantize_fp8,
    dequantize_nvfp4,
    quantize_fp8,
    quantize_nvfp4,
)

Tensors = dict[str, torch.Tensor]

STANDARD_DEVIATION = 0.05
"""Of the weights, about a mean of zero."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory.

    Attributes:
        tensors: What the files hold, in the order of a Hugging Face checkpoint: layer
            by layer, each weight with its scales.
        expected: For each weight, without its scales, what it stands for: itself, or
            the bfloat16 of a quantized one.
    """

    tensors: Tensors
    expected: Tensors

    @property
    def weights(self) -> list[tuple[str, torch.Tensor]]:
        """The tensors as `load_weights` takes them."""
        return list(self.tensors.items())


def make_checkpoint(spec: TinyGlm5, seed: int = 0) -> Checkpoint:
    """Makes a checkpoint with random weights. It always has the MTP layer.

    Args:
        spec: The tiny model.
        seed: Of the weights. Checkpoints of two seeds differ in every weight, and
            agree in names, shapes and dtypes.

    Returns:
        The checkpoint.
    """
    generator = torch.Generator().manual_seed(seed)
    checkpoint = Checkpoint({}, {})
    for weight in checkpoint_weights(spec):
        values = torch.randn(weight.shape, generator=generator) * STANDARD_DEVIATION
        stored, expected = _store(weight, values)
        checkpoint.tensors.update(stored)
        checkpoint.expected[weight.name] = expected
    return checkpoint


def _store(weight: Weight, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Gives the tensors that hold a weight, by name, and what they stand for."""
    if weight.weight_format is WeightFormat.BF16:
        plain = values.to(weight.dtype)
        return {weight.name: plain}, plain
    if weight.weight_format.is_nvfp4:
        return _store_nvfp4(weight, values)
    quantized, scale = quantize_fp8(values, _SCALE_DTYPE[weight.weight_format])
    suffix = "" if weight.weight_format is WeightFormat.QUARK else "_inv"
    stored = {weight.name: quantized, f"{weight.name}_scale{suffix}": scale}
    return stored, dequantize_fp8(quantized, scale)


_SCALE_DTYPE = {
    WeightFormat.FP8: torch.float32,
    WeightFormat.FP8_BF16_SCALE: torch.bfloat16,
    WeightFormat.FP8_E8M0_SCALE: torch.float8_e8m0fnu,
    WeightFormat.QUARK: torch.float32,
}


def _store_nvfp4(weight: Weight, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    packed, scale, scale_2 = quantize_nvfp4(values)
    stored: Tensors = {}
    if weight.weight_format is WeightFormat.NVFP4_W4A4:
        input_scale = f"{weight.name.removesuffix('weight')}input_scale"
        stored[input_scale] = torch.tensor(0.02)
    stored[weight.name] = packed
    stored[f"{weight.name}_scale"] = scale
    stored[f"{weight.name}_scale_2"] = scale_2
    return stored, dequantize_nvfp4(packed, scale, scale_2)


def write_checkpoint(
    folder: Path, spec: TinyGlm5, tensors: Mapping[str, torch.Tensor], shards: int = 2
) -> Path:
    """Writes a checkpoint in Hugging Face's layout.

    Args:
        folder: Where config.json, the shards and their index go. Made if missing.
        spec: The tiny model.
        tensors: What the shards hold, in this order.
        shards: Number of files to divide the tensors over.

    Returns:
        The folder.

    Raises:
        ValueError: if there are no shards, or more than tensors.
    """
    from safetensors.torch import save_file

    if not 1 <= shards <= len(tensors):
        raise ValueError(
            f"shards is {shards}; expected 1 to {len(tensors)}, the number of tensors"
        )
    hf_config(spec).save_pretrained(folder)
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        held = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        save_file({name: tensors[name] for name in held}, folder / file)
        weight_map |= dict.fromkeys(held, file)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder
