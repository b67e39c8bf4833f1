# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The tiny GLM-5.x is what it says: vLLM's own models, loaded exactly."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.glm5_tiny import (
    Architecture,
    Experts,
    GlmModel,
    TinyGlm5,
    WeightFormat,
    build,
    differences,
    expected_parameters,
    load_from_disk,
    load_from_stream,
    load_weights,
    make_checkpoint,
    process_weights,
    reload_layerwise,
    tensors_of,
    unloaded_parameters,
    write_checkpoint,
)

pytestmark = pytest.mark.usefixtures("glm5_process")

FolderOf = Callable[[TinyGlm5], Path]

LOADABLE = [
    *(
        TinyGlm5(architecture, weight_format)
        for architecture in Architecture
        for weight_format in WeightFormat
    ),
    TinyGlm5(experts=Experts.BF16),
    TinyGlm5(Architecture.MTP, experts=Experts.BF16),
    TinyGlm5(sparse_indexer=False),
    *(
        TinyGlm5(architecture, weight_format, nope_pad=32)
        for architecture in (Architecture.CAUSAL, Architecture.MTP)
        for weight_format in (
            WeightFormat.BF16,
            WeightFormat.FP8,
            WeightFormat.QUARK,
            WeightFormat.NVFP4_W4A16,
        )
    ),
]


def spec_id(spec: TinyGlm5) -> str:
    parts: list[str] = [spec.architecture, spec.weight_format]
    if spec.experts is not Experts.NONE:
        parts.append(f"{spec.experts}-experts")
    if not spec.sparse_indexer:
        parts.append("dense-attention")
    if spec.nope_pad:
        parts.append(f"pad{spec.nope_pad}")
    return "-".join(parts)


@pytest.fixture(scope="module", params=LOADABLE, ids=spec_id)
def spec(request: pytest.FixtureRequest) -> TinyGlm5:
    return request.param


@pytest.fixture(scope="module")
def from_disk(
    glm5_process: None, spec: TinyGlm5, checkpoint_folder: FolderOf
) -> GlmModel:
    return load_from_disk(spec, checkpoint_folder(spec))


class Reloaded(NamedTuple):
    model: GlmModel
    addresses: dict[str, int]


@pytest.fixture(scope="module")
def reloaded(
    glm5_process: None, spec: TinyGlm5, checkpoint_folder: FolderOf
) -> Reloaded:
    first, second = make_checkpoint(spec, seed=0), make_checkpoint(spec, seed=1)
    model = load_from_stream(spec, checkpoint_folder(spec), [first.weights])
    addresses = _addresses(model)
    reload_layerwise(model, [second.weights])
    return Reloaded(model, addresses)


def _addresses(model: GlmModel) -> dict[str, int]:
    tensors = tensors_of(model.module)
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def test_cold_start_from_disk_is_exact(spec: TinyGlm5, from_disk: GlmModel):
    expected = expected_parameters(spec, make_checkpoint(spec))

    assert differences(from_disk.module, expected) == {}
    assert unloaded_parameters(from_disk.module) == []


def test_cold_start_from_stream_equals_one_from_disk(
    spec: TinyGlm5, from_disk: GlmModel, checkpoint_folder: FolderOf
):
    weights = make_checkpoint(spec).weights
    streamed = load_from_stream(spec, checkpoint_folder(spec), [weights])

    assert differences(streamed.module, tensors_of(from_disk.module)) == {}


def test_layerwise_reload_is_exact(spec: TinyGlm5, reloaded: Reloaded):
    expected = expected_parameters(spec, make_checkpoint(spec, seed=1))

    assert differences(reloaded.model.module, expected) == {}


def test_layerwise_reload_equals_a_cold_start(
    spec: TinyGlm5, reloaded: Reloaded, checkpoint_folder: FolderOf
):
    weights = make_checkpoint(spec, seed=1).weights
    fresh = load_from_stream(spec, checkpoint_folder(spec), [weights])

    assert differences(reloaded.model.module, tensors_of(fresh.module)) == {}


def test_layerwise_reload_moves_no_tensor(reloaded: Reloaded):
    assert _addresses(reloaded.model) == reloaded.addresses


def test_architecture_names_the_model_class(checkpoint_folder: FolderOf):
    classes = {
        architecture: type(build(spec, checkpoint_folder(spec)).module).__name__
        for architecture in Architecture
        for spec in [TinyGlm5(architecture)]
    }

    assert classes == {
        Architecture.CAUSAL: "Glm5NextForCausalLM",
        Architecture.MULTIMODAL: "Glm5NextForConditionalGeneration",
        Architecture.MTP: "Glm5NextMTP",
    }


def test_weight_left_out_of_a_stream_shows_as_unloaded(checkpoint_folder: FolderOf):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    del checkpoint.tensors["model.layers.1.self_attn.q_a_layernorm.weight"]

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    left_out = "model.layers.1.self_attn.q_a_layernorm.weight"
    assert unloaded_parameters(model.module) == [left_out]


def test_every_parameter_of_a_built_model_shows_as_unloaded(
    checkpoint_folder: FolderOf,
):
    spec = TinyGlm5(Architecture.MULTIMODAL)
    module = build(spec, checkpoint_folder(spec)).module

    assert unloaded_parameters(module) == [
        name for name, _ in module.named_parameters()
    ]


def test_differences_counts_what_differs_and_what_is_poisoned():
    module = torch.nn.Linear(2, 2, bias=False)
    module.weight.data = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    expected = torch.tensor([[1.0, 0.0], [3.0, 4.0]])

    found = differences(module, {"weight": expected, "bias": expected})

    assert found == {
        "weight": "2 of 4 elements differ, 1 poisoned",
        "bias": "missing",
    }


def test_fp8_experts_load_and_have_no_kernel_on_the_cpu(checkpoint_folder: FolderOf):
    spec = TinyGlm5(experts=Experts.FP8)
    checkpoint = make_checkpoint(spec)
    model = build(spec, checkpoint_folder(spec))

    load_weights(model, [checkpoint.weights])

    # Before processing, projections hold packed bytes.
    unloaded = unloaded_parameters(model.module)
    assert not [name for name in unloaded if ".self_attn." not in name]
    experts = "model.layers.1.mlp.experts"
    down = [checkpoint.tensors[f"{experts}.{i}.down_proj.weight"] for i in range(4)]
    held = {f"{experts}.routed_experts.w2_weight": torch.stack(down)}
    assert differences(model.module, held) == {}
    with pytest.raises(ValueError, match="Unsupported FP8 MoE backend"):
        process_weights(model)


def test_weights_and_scales_in_two_calls_are_loaded(checkpoint_folder: FolderOf):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    calls: tuple[list, list] = ([], [])
    for name, tensor in checkpoint.weights:
        calls[name.endswith("_scale_inv")].append((name, tensor))

    model = load_from_stream(spec, checkpoint_folder(spec), calls)

    expected = expected_parameters(spec, checkpoint)
    assert differences(model.module, expected) == {}


def test_weight_and_scale_in_two_shards_are_loaded(tmp_path: Path):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    names = list(checkpoint.tensors)
    scale = names.index("model.layers.1.self_attn.o_proj.weight_scale_inv")
    # Of two shards, let the scale be first of the second. vLLM reads a shard in the
    # order of names, so lm_head.weight comes before the scale.
    half = len(names) // 2
    order = names[scale + 1 : half + 1] + names[: scale + 1] + names[half + 1 :]
    assert order.index(names[scale]) == half
    tensors = {name: checkpoint.tensors[name] for name in order}

    model = load_from_disk(spec, write_checkpoint(tmp_path, spec, tensors))

    expected = expected_parameters(spec, checkpoint)
    assert differences(model.module, expected) == {}


@pytest.mark.parametrize("nope_pad", [-2, 1, 64])
def test_nope_pad_that_vllm_would_misread_is_refused(nope_pad: int):
    with pytest.raises(ValueError, match=f"nope_pad is {nope_pad}; expected"):
        TinyGlm5(nope_pad=nope_pad)


def test_fp8_experts_beside_another_format_are_refused():
    with pytest.raises(ValueError, match="beside weights in bf16; expected"):
        TinyGlm5(weight_format=WeightFormat.BF16, experts=Experts.FP8)
