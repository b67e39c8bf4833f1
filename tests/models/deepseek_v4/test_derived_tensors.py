# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What DeepSeek-V4 and V4.1 derive on ROCm, and the weights that it is derived of."""

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
GROUPS, RANK, BLOCK = 2, 128, 128


@pytest.fixture(scope="module")
def attention_class() -> Any:
    """The class; its module asks for the GPU while it is imported."""
    properties = SimpleNamespace(gcnArchName="gfx950")
    with mock.patch("torch.cuda.get_device_properties", lambda _: properties):
        from vllm.models.deepseek_v4.amd import rocm
    return rocm.DeepseekV4ROCMAiterMLAAttention


@pytest.fixture(scope="module")
def v41_attention_class() -> Any:
    """The class of V4.1, in the same way."""
    properties = SimpleNamespace(gcnArchName="gfx950")
    with mock.patch("torch.cuda.get_device_properties", lambda _: properties):
        from vllm.models.deepseek_v41.amd import rocm
    return rocm.DeepseekV41ROCMAiterMLAAttention


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
        attention.wo_a = nn.Module()
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


class OutputProjection(nn.Module):
    """An attention layer of V4.1 with its block-FP8 output projection alone."""

    def __init__(self, cls: Any):
        super().__init__()
        attention: Any = cls.__new__(cls)
        nn.Module.__init__(attention)
        attention.wo_a = nn.Module()
        for name, tensor in _projection(0).items():
            param = nn.Parameter(torch.zeros_like(tensor), requires_grad=False)
            attention.wo_a.register_parameter(name, param)
        attention.process_weights_after_loading = None
        self.attention = attention

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            param = getattr(self.attention.wo_a, name)
            getattr(param, "weight_loader", default_weight_loader)(param, weight)


def _projection(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = GROUPS * RANK, 2 * BLOCK
    scale = torch.rand(rows // BLOCK, columns // BLOCK, generator=generator) + 0.5
    weight = torch.randn(rows, columns, generator=generator)
    return {"weight": weight.to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def _dequantized(projection: dict[str, torch.Tensor]) -> torch.Tensor:
    scale = projection["weight_scale_inv"]
    scale = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    weight = projection["weight"].float() * scale
    return weight.to(torch.bfloat16).view(GROUPS, RANK, -1)


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_the_dequantized_output_projection_follows_it(
    mode: Any, v41_attention_class: Any
):
    from vllm.v1.attention.ops.rocm_aiter_mla_sparse import _get_cached_wo_a_bf16

    model: Any = OutputProjection(v41_attention_class)
    record_metadata_for_reloading(model)
    model.load_weights(list(_projection(0).items()))
    # The first forward pass makes it, in this mode.
    with torch.inference_mode():
        copy = _get_cached_wo_a_bf16(model.attention.wo_a, GROUPS, RANK, 2 * BLOCK)
    assert torch.equal(copy, _dequantized(_projection(0)))
    captured = CapturedReads(model, ["attention.wo_a._dsv4_wo_a_bf16"])

    for seed in (1, 2, 3):
        start_reload(model, mode)
        model.load_weights(list(_projection(seed).items()))
        finish_reload(model, CONFIG)

        assert not captured.differences()
        assert model.attention.wo_a._dsv4_wo_a_bf16 is copy
        assert torch.equal(copy, _dequantized(_projection(seed)))


def test_an_output_projection_that_was_not_dequantized_stays_so(
    v41_attention_class: Any,
):
    model: Any = OutputProjection(v41_attention_class)

    model.attention.refill_derived_tensors()

    assert not hasattr(model.attention.wo_a, "_dsv4_wo_a_bf16")
