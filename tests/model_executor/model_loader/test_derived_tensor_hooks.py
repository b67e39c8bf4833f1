# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""When modules are asked to derive their tensors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.reload import (
    abort_reload,
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

CONFIG: Any = SimpleNamespace(
    dtype=torch.float32, quantization=None, word_embeddings_untied_by_checkpoint=False
)


class Attention(nn.Module, AttentionLayerBase):
    """A layer that is processed after all others."""

    def __init__(self, calls: list[str]):
        super().__init__()
        self.calls = calls
        self.weight = nn.Parameter(torch.zeros(2))

    def get_attn_backend(self) -> Any: ...

    def get_kv_cache_spec(self, vllm_config: Any) -> Any: ...

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self.calls.append("attention")


class Deriving(nn.Module):
    def __init__(self, calls: list[str]):
        super().__init__()
        self.calls = calls

    def refill_derived_tensors(self) -> None:
        assert not torch.is_grad_enabled()
        self.calls.append("derived")


class Model(nn.Module):
    reload_safe_post_load = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.deriving = Deriving(self.calls)
        self.attention = Attention(self.calls)

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)

    def process_weights_after_loading(self) -> None:
        self.calls.append("model")


WEIGHTS = [("attention.weight", torch.ones(2))]


def test_a_cold_start_derives_after_attention_and_before_the_models_hook():
    model = Model()

    process_weights_after_loading(model, CONFIG, torch.device("cpu"))

    assert model.calls == ["attention", "derived", "model"]


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_a_reload_derives_once_after_attention(mode: Any):
    model = Model()
    record_metadata_for_reloading(model)

    start_reload(model, mode)
    model.load_weights(WEIGHTS)
    assert model.calls == []
    finish_reload(model, CONFIG)

    assert model.calls == ["attention", "derived", "model"]


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_a_hook_that_is_not_declared_safe_refuses_a_reload(mode: Any):
    model = Model()
    record_metadata_for_reloading(model)
    model.reload_safe_post_load = False

    with pytest.raises(RuntimeError, match="not declared safe"):
        start_reload(model, mode)

    assert model.attention.weight.tolist() == [0, 0]
    abort_reload(model)
