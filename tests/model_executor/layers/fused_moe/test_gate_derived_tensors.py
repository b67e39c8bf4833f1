# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What MoE layers derive from their gates follows them, at its first address."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads
from tests.current_platform import use_cuda_like_cpu_platform
from tests.tensor_parallel import tensor_parallel_group
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.post_load import (
    process_layer,
    refill_derived_tensors,
)
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

CONFIG: Any = SimpleNamespace(dtype=torch.float32)
HIDDEN, EXPERTS = 32, 4


@pytest.fixture(scope="module", autouse=True)
def _process_groups() -> Iterator[None]:
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        yield


class Model(nn.Module):
    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)


def _runner(fuse: bool = True) -> Any:
    runner: Any = MoERunner.__new__(MoERunner)
    nn.Module.__init__(runner)
    runner.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
    runner.shared_expert_gate = nn.Linear(HIDDEN, 1, bias=False) if fuse else None
    runner._fse_fuse_gate = fuse
    runner._combined_gate_weight = None
    return runner


def _gate_weights(seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (f"runner.{name}.weight", torch.randn(rows, HIDDEN, generator=generator))
        for name, rows in (("gate", EXPERTS), ("shared_expert_gate", 1))
    ]


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_the_combined_gate_weight_follows_both_gates(mode: Any):
    model: Any = Model()
    model.runner = _runner()
    record_metadata_for_reloading(model)
    model.load_weights(_gate_weights(0))
    refill_derived_tensors(model)
    captured = CapturedReads(model, ["runner._combined_gate_weight"])

    for seed in (1, 2, 3):
        weights = _gate_weights(seed)
        start_reload(model, mode)
        for pair in weights:
            model.load_weights([pair])
        finish_reload(model, CONFIG)
        model.runner._maybe_fuse_gate_weights()

        assert not captured.differences()
        expected = torch.cat([weight for _, weight in weights])
        assert torch.equal(model.runner._combined_gate_weight, expected)


def test_gates_that_are_not_fused_are_left_alone():
    model: Any = Model()
    model.runner = _runner(fuse=False)

    refill_derived_tensors(model)

    assert model.runner._combined_gate_weight is None


def _rocm_gate() -> Any:
    """A gate with ROCm's bf16x3 tier switched on, as its constructor does there."""
    from vllm.model_executor.layers.fused_moe.router import gate_linear

    with mock.patch(
        "vllm.model_executor.layers.fused_moe.router.bf16x3_router_gemm_rocm"
        ".platform_supported",
        lambda: True,
    ):
        return gate_linear.GateLinear(
            HIDDEN,
            EXPERTS,
            bias=False,
            out_dtype=torch.float32,
            params_dtype=torch.float32,
            prefix="gate",
        )


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_the_bf16x3_split_follows_the_router_weight(mode: Any):
    model: Any = Model()
    model.gate = _rocm_gate()
    assert model.gate.allow_rocm_bf16x3_router_gemm
    record_metadata_for_reloading(model)
    model.load_weights([("gate.weight", torch.randn(EXPERTS, HIDDEN))])
    split = "vllm.model_executor.layers.fused_moe.router.bf16x3_router_gemm_rocm"
    with mock.patch(f"{split}.split_bf16x3", lambda weight: torch.stack([weight] * 3)):
        process_layer(model.gate)
        captured = CapturedReads(model, ["gate._bf16x3_weight"])
        for seed in (1, 2, 3):
            generator = torch.Generator().manual_seed(seed)
            weight = torch.randn(EXPERTS, HIDDEN, generator=generator)
            start_reload(model, mode)
            model.load_weights([("gate.weight", weight)])
            finish_reload(model, CONFIG)

            assert not captured.differences()
            assert torch.equal(model.gate._bf16x3_weight[2], weight)
