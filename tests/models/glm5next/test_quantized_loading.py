# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quantized checkpoints of GLM-5-next load in every format.

That their tensors may come in any order is tested in `test_projections`.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.glm5_config import hf_config
from tests.glm5_tiny import (
    Architecture,
    TinyGlm5,
    WeightFormat,
    build,
    differences,
    engine_config,
    expected_parameters,
    load_from_stream,
    make_checkpoint,
    process_weights,
)
from tests.models.glm5next.format_matrix import (
    EXACT,
    LOADED_BY_STOCK,
    ROWS,
    outcome,
    outcomes,
)
from tests.models.glm5next.projections import MODELS, SCALES, FolderOf, attention
from tests.stock_vllm import run_on_stock

pytestmark = pytest.mark.usefixtures("glm5_process")


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if not row.refusal])
def test_every_format_loads_exactly(name: str, config_folders):
    assert outcome(ROWS[name], config_folders) == EXACT


def test_stock_loads_a_quarter_of_the_formats(stock_tree: Path, config_folders):
    found = run_on_stock(stock_tree, outcomes, config_folders)

    assert {name for name, result in found.items() if result == EXACT} == (
        LOADED_BY_STOCK
    )


@pytest.mark.parametrize("architecture", MODELS)
def test_fp8_that_is_fused_on_disk_loads_exactly(
    architecture: Architecture, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(architecture)
    checkpoint = make_checkpoint(spec)
    tensors = dict(checkpoint.tensors)
    for end in ("weight", "weight_scale_inv"):
        shards = [
            tensors.pop(f"{attention(spec)}{shard}.{end}")
            for shard in ("q_a_proj", "kv_a_proj_with_mqa")
        ]
        tensors[f"{attention(spec)}fused_qkv_a_proj.{end}"] = torch.cat(shards)

    model = load_from_stream(spec, checkpoint_folder(spec), [tensors.items()])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


@pytest.mark.parametrize("declared", [*SCALES, WeightFormat.QUARK])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_bf16_checkpoint_passes_the_check_for_completeness(
    architecture: Architecture, declared: WeightFormat, tmp_path: Path
):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    spec = TinyGlm5(architecture, declared)
    plain = make_checkpoint(TinyGlm5(architecture, WeightFormat.BF16))
    hf_config(spec).save_pretrained(tmp_path)
    model = build(spec, tmp_path)

    loaded = model.module.load_weights(iter(plain.weights))  # type: ignore[operator]

    named = {name for name, _ in model.module.named_parameters()}
    loader = DefaultModelLoader(model.vllm_config.load_config)
    loader.track_weights_loading(model.module, loaded)
    assert loaded == named
    process_weights(model)
    assert differences(model.module, expected_parameters(spec, plain)) == {}


def test_input_scale_does_not_count_as_a_weight(checkpoint_folder: FolderOf):
    spec = TinyGlm5(weight_format=WeightFormat.NVFP4_W4A4)
    model = build(spec, checkpoint_folder(spec))
    name = "model.layers.1.self_attn.q_b_proj.input_scale"

    loaded = model.module.load_weights([(name, torch.tensor(1.0))])  # type: ignore[operator]

    assert loaded == {name}


def test_kv_cache_scale_is_no_scale_of_a_projection(checkpoint_folder: FolderOf):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    name = f"{attention(spec)}kv_b_proj.k_scale"
    checkpoint.tensors[name] = torch.tensor(1.0)

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


def test_head_of_the_draft_is_that_of_its_target(checkpoint_folder: FolderOf):
    spec = TinyGlm5(Architecture.MTP)
    checkpoint = make_checkpoint(spec)
    name = "model.language_model.layers.2.shared_head.head.weight"
    checkpoint.tensors[name] = torch.ones(256, 256, dtype=torch.bfloat16)

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}
    assert model.module.get_submodule("model.layers.2.shared_head").head is None


@pytest.mark.parametrize("weight_format", SCALES)
def test_draft_loads_under_the_prefix_of_a_text_only_checkpoint(
    weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(Architecture.MTP, weight_format)
    checkpoint = make_checkpoint(spec)
    short = [(n.replace(".language_model", ""), t) for n, t in checkpoint.weights]

    model = load_from_stream(spec, checkpoint_folder(spec), [short])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


@pytest.mark.parametrize("architecture", list(Architecture))
@pytest.mark.parametrize("weight_format", list(WeightFormat))
def test_what_is_quantized_says_nothing_about_the_kv_cache(
    architecture: Architecture, weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    from vllm.model_executor.layers.attention import MLAAttention

    spec = TinyGlm5(architecture, weight_format)
    module = build(spec, checkpoint_folder(spec)).module

    attention = [m for m in module.modules() if isinstance(m, MLAAttention)]
    assert len(attention) == 1
    assert attention[0].quant_config is None
    assert attention[0].kv_cache_dtype == "auto"


def test_bf16_checkpoint_has_plain_layers(checkpoint_folder: FolderOf):
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    spec = TinyGlm5(weight_format=WeightFormat.BF16)
    module = build(spec, checkpoint_folder(spec)).module

    linears = [m for m in module.modules() if isinstance(m, LinearBase)]
    assert {type(m.quant_method) for m in linears} == {UnquantizedLinearMethod}


@pytest.mark.parametrize("weight_format", [WeightFormat.BF16, *SCALES])
def test_kernels_for_bf16_weights_are_chosen_as_for_a_bf16_checkpoint(
    weight_format: WeightFormat,
    checkpoint_folder: FolderOf,
    monkeypatch: pytest.MonkeyPatch,
):
    from vllm.model_executor.layers.attention import mla_attention

    operators = mla_attention.rocm_aiter_ops
    monkeypatch.setattr(operators, "is_fp4bmm_enabled", lambda: True)
    spec = TinyGlm5(weight_format=weight_format)
    module = build(spec, checkpoint_folder(spec)).module

    attention = module.get_submodule("model.layers.1.self_attn.mla_attn.mla_attn")
    assert attention.is_aiter_triton_fp4_bmm_enabled is True


@pytest.mark.parametrize("weight_format", [WeightFormat.BF16, *SCALES])
def test_low_latency_kernel_is_chosen_as_for_a_bf16_checkpoint(
    weight_format: WeightFormat,
    checkpoint_folder: FolderOf,
    monkeypatch: pytest.MonkeyPatch,
):
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models import deepseek_v2
    from vllm.models.glm5next.common.checkpoint import dequant_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    spec = TinyGlm5(weight_format=weight_format)
    vllm_config = engine_config(spec, checkpoint_folder(spec))
    hopper = SimpleNamespace(is_cuda=lambda: True, is_device_capability=lambda _: True)
    monkeypatch.setattr(deepseek_v2, "current_platform", hopper)
    with (
        set_current_vllm_config(vllm_config),
        set_default_torch_dtype(torch.bfloat16),
        torch.device("meta"),
    ):
        layer = deepseek_v2.DeepSeekV2FusedQkvAProjLinear(
            7168,
            [1536, 576],
            dequant_config(vllm_config.quant_config),
            "model.layers.1.self_attn.fused_qkv_a_proj",
        )

    assert layer._use_min_latency_gemm is True
