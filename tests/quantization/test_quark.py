# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quark's names and formats in layers of GLM-5-next that run in bfloat16."""

import torch

from tests.glm5_tiny import (
    Architecture,
    TinyGlm5,
    WeightFormat,
    build,
    differences,
    expected_parameters,
    load_from_stream,
    make_checkpoint,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)


def _load(folder, architecture: Architecture, *, each_alone: bool) -> dict[str, str]:
    spec = TinyGlm5(architecture, WeightFormat.QUARK)
    checkpoint = make_checkpoint(spec)
    write_checkpoint(folder, spec, checkpoint.tensors)
    backwards = checkpoint.weights[::-1]
    calls = [backwards]
    if each_alone and architecture is not Architecture.MTP:
        calls = [[named] for named in backwards]
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        model = load_from_stream(spec, folder, calls)
    return differences(model.module, expected_parameters(spec, checkpoint))


def test_scales_named_weight_scale_load_before_their_weights(tmp_path):
    assert _load(tmp_path, Architecture.CAUSAL, each_alone=False) == {}


def test_scales_named_weight_scale_load_in_calls_of_their_own(tmp_path):
    assert _load(tmp_path, Architecture.MULTIMODAL, each_alone=True) == {}


def test_scales_named_weight_scale_load_into_the_draft(tmp_path):
    assert _load(tmp_path, Architecture.MTP, each_alone=False) == {}


def test_weight_scale_is_loaded_as_a_block_scale(tmp_path):
    spec = TinyGlm5(weight_format=WeightFormat.QUARK)
    checkpoint = make_checkpoint(spec)
    write_checkpoint(tmp_path, spec, checkpoint.tensors)
    name = "model.layers.1.self_attn.q_b_proj.weight_scale"
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        module = build(spec, tmp_path).module

        loaded = module.load_weights([(name, checkpoint.tensors[name])])  # type: ignore[operator]

    assert loaded == {f"{name}_inv"}
    held = module.get_parameter(f"{name}_inv")
    assert torch.equal(held, checkpoint.tensors[name])
