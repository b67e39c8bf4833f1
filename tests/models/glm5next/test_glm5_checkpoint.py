# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Checkpoints of the tiny GLM-5.x on disk."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.glm5_tiny import (
    Architecture,
    TinyGlm5,
    WeightFormat,
    make_checkpoint,
    write_checkpoint,
)

MULTIMODAL = TinyGlm5(Architecture.MULTIMODAL)


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_vllm_s_loader_reads_back_what_was_written(
    weight_format: WeightFormat, tmp_path: Path
):
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import DefaultModelLoader

    spec = TinyGlm5(weight_format=weight_format)
    tensors = make_checkpoint(spec).tensors
    write_checkpoint(tmp_path, spec, tensors, shards=3)

    source = DefaultModelLoader.Source(str(tmp_path), revision=None)
    loader = DefaultModelLoader(LoadConfig())
    read = dict(loader._get_weights_iterator(source))

    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        flat = (t.reshape(-1).view(torch.uint8) for t in (read[name], tensor))
        assert torch.equal(*flat), name


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_index_names_the_shard_of_every_tensor(shards: int, tmp_path: Path):
    tensors = make_checkpoint(MULTIMODAL).tensors

    write_checkpoint(tmp_path, MULTIMODAL, tensors, shards)

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    held: dict[str, str] = {}
    for file in tmp_path.glob("model-*.safetensors"):
        with safe_open(file, "pt") as shard:
            held |= dict.fromkeys(shard.keys(), file.name)
    assert index["weight_map"] == held
    assert held.keys() == tensors.keys()
    assert len(set(held.values())) == shards


@pytest.mark.parametrize("shards", [0, 1000])
def test_impossible_number_of_shards_is_refused(shards: int, tmp_path: Path):
    tensors = make_checkpoint(MULTIMODAL).tensors

    with pytest.raises(ValueError, match=f"shards is {shards}; expected 1 to"):
        write_checkpoint(tmp_path, MULTIMODAL, tensors, shards)

    assert list(tmp_path.iterdir()) == []


def test_two_seeds_differ_in_every_weight():
    spec = TinyGlm5(Architecture.MULTIMODAL, WeightFormat.NVFP4_W4A4)
    first, second = make_checkpoint(spec, seed=0), make_checkpoint(spec, seed=1)

    assert first.tensors.keys() == second.tensors.keys()
    for name, expected in first.expected.items():
        assert not torch.equal(expected, second.expected[name]), name


def test_quark_names_the_scale_differently():
    fp8 = make_checkpoint(TinyGlm5(weight_format=WeightFormat.FP8)).tensors
    quark = make_checkpoint(TinyGlm5(weight_format=WeightFormat.QUARK)).tensors

    renamed = [name.replace("weight_scale_inv", "weight_scale") for name in fp8]
    assert list(quark) == renamed
    assert list(fp8) != renamed


@pytest.mark.parametrize(
    ("weight_format", "dtype"),
    [
        (WeightFormat.FP8, torch.float32),
        (WeightFormat.FP8_BF16_SCALE, torch.bfloat16),
        (WeightFormat.FP8_E8M0_SCALE, torch.float8_e8m0fnu),
    ],
)
def test_fp8_scales_have_the_dtype_of_the_format(
    weight_format: WeightFormat, dtype: torch.dtype
):
    tensors = make_checkpoint(TinyGlm5(weight_format=weight_format)).tensors
    scales = [t for name, t in tensors.items() if name.endswith("weight_scale_inv")]

    assert len(scales) == 8
    assert {scale.dtype for scale in scales} == {dtype}
