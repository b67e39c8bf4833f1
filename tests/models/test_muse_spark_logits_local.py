# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Muse Spark's router multiplier is in its weight once, however often it is loaded."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads
from tests.current_platform import use_cuda_like_cpu_platform
from tests.tensor_parallel import tensor_parallel_group
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.post_load import refill_derived_tensors

HIDDEN, EXPERTS, MULTIPLIER = 16, 4, 0.3
CONFIG: Any = SimpleNamespace(dtype=torch.float32)


@pytest.fixture(scope="module", autouse=True)
def _process_groups() -> Iterator[None]:
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        yield


class Model(nn.Module):
    """One MoE block with what its constructor gives the router."""

    def __init__(self, platform: str, multiplier: float | None = MULTIPLIER):
        super().__init__()
        from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear
        from vllm.models.muse_spark.common.moe import MuseSpark1xRouter

        cls: Any
        if platform == "nvidia":
            from vllm.models.muse_spark.nvidia.model import MuseSpark1xMoE as cls
        else:
            from vllm.models.muse_spark.amd.model import MuseSpark1xMoE as cls
        moe: Any = cls.__new__(cls)
        nn.Module.__init__(moe)
        moe.router = GateLinear(
            HIDDEN,
            EXPERTS,
            bias=False,
            out_dtype=torch.float32,
            params_dtype=torch.float32,
            prefix="router",
        )
        moe.router.weight.weight_loader = moe._load_router_weight
        moe.router_output_multiplier = multiplier
        moe.moe_router = MuseSpark1xRouter.__new__(MuseSpark1xRouter)
        moe.moe_router.router_output_multiplier = multiplier
        self.moe = moe

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters: dict[str, Any] = dict(self.named_parameters())
        for name, weight in weights:
            parameters[name].weight_loader(parameters[name], weight)


@pytest.fixture(params=["nvidia", "amd"])
def model(request: pytest.FixtureRequest) -> Model:
    model = Model(request.param)
    record_metadata_for_reloading(model)
    return model


def _router_weight(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(EXPERTS, HIDDEN, generator=generator, dtype=torch.bfloat16)


def _assert_folded_once(model: Model, weight: torch.Tensor) -> None:
    folded = weight.float() * MULTIPLIER
    assert torch.equal(model.moe.router.weight.data, folded)
    assert model.moe.moe_router.router_output_multiplier is None


def test_the_first_load_folds(model: Model):
    weight = _router_weight(0)

    model.load_weights([("moe.router.weight", weight)])
    refill_derived_tensors(model)
    refill_derived_tensors(model)

    _assert_folded_once(model, weight)
    assert torch.equal(weight, _router_weight(0))


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_every_reload_folds_once(model: Model, mode: Any):
    model.load_weights([("moe.router.weight", _router_weight(0))])
    captured = CapturedReads(model, ["moe.router.weight"])

    for seed in (1, 2, 3):
        weight = _router_weight(seed)
        start_reload(model, mode)
        model.load_weights([])
        model.load_weights([("moe.router.weight", weight)])
        model.load_weights([])
        finish_reload(model, CONFIG)

        _assert_folded_once(model, weight)
        assert not captured.differences()


@pytest.mark.parametrize("platform", ["nvidia", "amd"])
def test_weights_that_no_loader_brought_are_multiplied_while_routing(platform: str):
    model = Model(platform)

    refill_derived_tensors(model)

    assert model.moe.moe_router.router_output_multiplier == MULTIPLIER


@pytest.mark.parametrize("platform", ["nvidia", "amd"])
def test_a_model_without_a_multiplier_keeps_its_weight(platform: str):
    model = Model(platform, multiplier=None)

    model.load_weights([("moe.router.weight", _router_weight(0))])

    assert torch.equal(model.moe.router.weight.data, _router_weight(0).float())
