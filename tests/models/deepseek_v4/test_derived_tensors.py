# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""DeepSeek-V4's compressor weights on ROCm stay where loaders write them."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

CONFIG: Any = SimpleNamespace(dtype=torch.float32)
MAIN, INDEXER, HIDDEN = 6, 4, 5


@pytest.fixture(scope="module")
def attention_class() -> Any:
    """The class; its module asks for the GPU while it is imported."""
    properties = SimpleNamespace(gcnArchName="gfx950")
    with mock.patch("torch.cuda.get_device_properties", lambda _: properties):
        from vllm.models.deepseek_v4.amd import rocm
    return rocm.DeepseekV4ROCMAiterMLAAttention


class Model(nn.Module):
    """One attention layer with the two compressors that are fused."""

    def __init__(self, cls: Any):
        super().__init__()
        attention: Any = cls.__new__(cls)
        nn.Module.__init__(attention)
        attention._fused_compressor_weight = None
        attention.compressor = _compressor(MAIN)
        attention.indexer = nn.Module()
        attention.indexer.compressor = _compressor(INDEXER)
        # As a deferred layer it would need all that MLA processing needs.
        attention.process_weights_after_loading = None
        self.attention = attention

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)


def _compressor(rows: int) -> nn.Module:
    compressor: Any = nn.Module()
    compressor.fused_wkv_wgate = nn.Linear(HIDDEN, rows, bias=False)
    return compressor


def _weights(seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    names = ("compressor", "indexer.compressor")
    return [
        (
            f"attention.{name}.fused_wkv_wgate.weight",
            torch.randn(rows, HIDDEN, generator=generator),
        )
        for name, rows in zip(names, (MAIN, INDEXER), strict=True)
    ]


@pytest.mark.parametrize("calls", ["one", "many"])
@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_the_fused_weight_follows_both_and_neither_moves(
    mode: Any, calls: str, attention_class: Any
):
    model: Any = Model(attention_class)
    record_metadata_for_reloading(model)
    model.load_weights(_weights(0))
    assert model.attention.prepare_compressor_gemm_fusion()
    paths = [name for name, _ in _weights(0)] + ["attention._fused_compressor_weight"]
    captured = CapturedReads(model, paths)
    storages = {
        param.untyped_storage().data_ptr(): param.storage_offset()
        for param in model.parameters()
    }
    assert list(storages.values()) == [0, 0]

    for seed in (1, 2, 3):
        weights = _weights(seed)
        start_reload(model, mode)
        for bucket in [weights] if calls == "one" else [[pair] for pair in weights]:
            model.load_weights(bucket)
        finish_reload(model, CONFIG)

        assert not captured.differences()
        main, indexer = (weight for _, weight in weights)
        parameters = dict(model.named_parameters())
        for name, weight in weights:
            assert torch.equal(parameters[name].data, weight)
        fused = model.attention._fused_compressor_weight
        assert torch.equal(fused, torch.cat((main, indexer)))


def test_a_layer_that_was_not_fused_is_not_fused_by_a_reload(attention_class: Any):
    model: Any = Model(attention_class)

    model.attention.refill_derived_tensors()

    assert model.attention._fused_compressor_weight is None
