# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The reload lifecycle, by itself and under `reload_weights`."""

import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.distributed.toy_transfer import (
    MODEL_CONFIG,
    bad_weights,
    loaded_toy_model,
    toy_weights,
    values,
)
from vllm.model_executor.model_loader.mtp_validation import (
    is_mtp_completeness_check_enabled,
)
from vllm.model_executor.model_loader.reload import (
    abort_reload,
    finish_reload,
    require_defined,
    start_reload,
)
from vllm.model_executor.model_loader.reload.inplace import reload_weights

MTP_MODELS = {
    "vllm.model_executor.models.bailing_moe_v3_mtp": "BailingMoeV3MTPModel",
    "vllm.models.deepseek_v32.amd.mtp": "DeepseekV32MTP",
    "vllm.models.glm5next.common.mtp": "Glm5NextMTP",
    "vllm.models.kimi_k3.amd.mtp": "KimiK3MTP",
    "vllm.models.kimi_k3.nvidia.mtp": "KimiK3MTP",
}


def _reload(model: torch.nn.Module, weights: Any, **kwargs: Any) -> None:
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.float32, quantization=None),
        load_config=None,
        lora_config=None,
    )
    reload_weights(
        config,
        model,
        weights.items(),
        weights_path=None,
        **{"is_checkpoint_format": True, **kwargs},
    )


def test_an_unknown_mode_is_rejected():
    model = loaded_toy_model(1.0)
    with pytest.raises(ValueError, match="sideways"):
        start_reload(model, "sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sideways"):
        _reload(model, toy_weights(2.0), mode="sideways")
    assert values(model) == {1.0}


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_nested_start_is_rejected(mode):
    model = loaded_toy_model(1.0)
    start_reload(model, mode)
    with pytest.raises(RuntimeError, match="already in progress"):
        start_reload(model, mode)
    abort_reload(model)


def test_finish_completes_the_mode_that_was_started():
    model = loaded_toy_model(1.0)
    for mode, value in (("direct", 2.0), ("layerwise", 3.0), ("direct", 4.0)):
        start_reload(model, mode)
        model.load_weights(toy_weights(value).items())
        finish_reload(model, MODEL_CONFIG)
        assert values(model) == {value}


def test_finish_without_start_is_rejected():
    with pytest.raises(RuntimeError, match="start one first"):
        finish_reload(loaded_toy_model(1.0), MODEL_CONFIG)


def test_abort_without_start_is_a_no_op():
    model = loaded_toy_model(1.0)
    abort_reload(model)
    assert values(model) == {1.0}


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_reload_weights_keeps_the_storage_in_either_mode(mode):
    model = loaded_toy_model(1.0)
    address = model.first.weight.data_ptr()
    _reload(model, toy_weights(2.0), mode=mode)
    assert values(model) == {2.0}
    assert model.first.weight.data_ptr() == address


def test_reload_weights_aborts_when_loading_fails():
    model = loaded_toy_model(1.0)
    address = model.first.weight.data_ptr()
    with pytest.raises(AssertionError):
        _reload(model, bad_weights(), mode="direct")

    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    assert model.first.weight.data_ptr() == address
    _reload(model, toy_weights(3.0), mode="direct")
    require_defined(model)
    assert values(model) == {3.0}


def test_reload_weights_aborts_when_the_source_of_the_weights_fails():
    def interrupted():
        yield "first.bias", torch.zeros(4)
        raise ConnectionError

    model = loaded_toy_model(1.0)
    with pytest.raises(ConnectionError):
        _reload(model, SimpleNamespace(items=interrupted), mode="direct")
    _reload(model, toy_weights(3.0), mode="direct")
    assert values(model) == {3.0}


def test_weights_in_kernel_format_are_refused_in_direct_mode():
    model = loaded_toy_model(1.0)
    with pytest.raises(ValueError, match="checkpoint format"):
        _reload(model, toy_weights(2.0), mode="direct", is_checkpoint_format=False)
    assert values(model) == {1.0}
    require_defined(model)


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_mtp_completeness_is_not_checked_during_a_reload(mode):
    model = loaded_toy_model(1.0)
    assert is_mtp_completeness_check_enabled()
    start_reload(model, mode)
    assert not is_mtp_completeness_check_enabled()
    model.load_weights(toy_weights(2.0).items())
    finish_reload(model, MODEL_CONFIG)
    assert is_mtp_completeness_check_enabled()


def test_mtp_completeness_is_checked_again_after_an_abort():
    model = loaded_toy_model(1.0)
    start_reload(model, "direct")
    abort_reload(model)
    assert is_mtp_completeness_check_enabled()


@pytest.mark.parametrize("module", MTP_MODELS)
def test_a_call_without_mtp_tensors_is_an_error_only_outside_of_a_reload(module):
    model_class = getattr(importlib.import_module(module), MTP_MODELS[module])
    mtp_model = _mtp_model_without_parameters()
    with pytest.raises(ValueError, match="missing from checkpoint"):
        model_class.load_weights(mtp_model, [])

    model = loaded_toy_model(1.0)
    start_reload(model, "direct")
    try:
        assert model_class.load_weights(mtp_model, []) == set()
    finally:
        abort_reload(model)


def _mtp_model_without_parameters() -> Any:
    """What `load_weights` of an MTP model reads to load nothing into one layer."""
    config = MagicMock(
        num_hidden_layers=1,
        n_routed_experts=1,
        n_shared_experts=1,
        num_experts=1,
        num_nextn_predict_layers=1,
        q_lora_rank=4,
        qk_rope_head_dim=4,
    )
    mtp_model = MagicMock(
        config=config, num_redundant_experts=0, is_fused_shared_expert_enabled=False
    )
    mtp_model.model.mtp_start_layer_idx = 1
    mtp_model.model.num_mtp_layers = 1
    mtp_model.hf_to_vllm_mapper.apply = lambda weights: weights
    mtp_model.named_parameters = lambda **kwargs: []
    return mtp_model
