# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What Muse Spark derives from its weights follows them, at its first address."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads, lookup
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.post_load import refill_derived_tensors
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

HIDDEN, EXPERTS = 8, 3
CONFIG: Any = SimpleNamespace(dtype=torch.float32)


class Gated(nn.Module):
    """Two residual connections, the second without a gate on the stream."""

    def __init__(self) -> None:
        super().__init__()
        from vllm.models.muse_spark.common.layers import (
            MuseSpark1xNormPreservingResidualConnection as Connection,
        )

        self.both = Connection(HIDDEN)
        self.branch_only = Connection(HIDDEN, use_stream_gate=False)

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        from vllm.models.muse_spark.common.layers import (
            materialize_residual_path_constants,
        )

        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)
        assert materialize_residual_path_constants(self) == 2


def _gates(seed: int) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (f"{name}.gate", torch.randn(HIDDEN, generator=generator))
        for name in ("both", "branch_only")
    ]


COEFFICIENTS = ("both.alpha", "both.beta", "branch_only.beta")


@pytest.mark.parametrize("calls", ["one", "many", "many-reversed"])
@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_residual_coefficients_follow_their_gates(mode: Any, calls: str):
    model: Any = Gated()
    record_metadata_for_reloading(model)
    model.load_weights(_gates(0))
    captured = CapturedReads(model, COEFFICIENTS)

    for seed in (1, 2, 3):
        gates = _gates(seed)
        start_reload(model, mode)
        buckets = [gates] if calls == "one" else [[gate] for gate in gates]
        for bucket in buckets[::-1] if calls == "many-reversed" else buckets:
            model.load_weights(bucket)
        finish_reload(model, CONFIG)

        assert not captured.differences()
        for name in ("both", "branch_only"):
            connection = model.get_submodule(name)
            gate = dict(gates)[f"{name}.gate"]
            alpha, beta = connection.coefficients(gate / connection.temperature)
            assert torch.equal(connection.beta, beta)
            if name == "both":
                assert torch.equal(connection.alpha, alpha)
        assert model.branch_only.alpha == 1.0


def test_the_cast_of_the_finalization_norm_follows_it():
    from vllm.models.muse_spark.nvidia.muse_moe_runner import MusePostExpertFinalize

    finalize: Any = MusePostExpertFinalize.__new__(MusePostExpertFinalize)
    weight = nn.Parameter(torch.ones(HIDDEN), requires_grad=False)
    finalize._norm = SimpleNamespace(has_weight=True, weight=weight, hidden_size=HIDDEN)
    finalize._fused_weight = None
    finalize.refill_weight()
    assert finalize._fused_weight is None
    with torch.inference_mode():
        finalize._effective_weight(torch.bfloat16, torch.device("cpu"))
    captured = CapturedReads(finalize, ["_fused_weight"])

    weight.data.fill_(3)
    finalize.refill_weight()

    assert not captured.differences()
    fused: Any = finalize._fused_weight
    assert torch.equal(fused, weight.bfloat16())


class ExpertsLayer(nn.Module):
    """The parameters of NVFP4 experts, as they are loaded."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {
            "w13_weight": (EXPERTS, 4, 4),
            "w13_weight_scale": (EXPERTS, 4, 1),
            "w13_weight_scale_2": (EXPERTS, 2),
            "w13_input_scale": (EXPERTS,),
            "w2_weight": (EXPERTS, 4, 4),
            "w2_weight_scale": (EXPERTS, 4, 1),
            "w2_weight_scale_2": (EXPERTS,),
            "w2_input_scale": (EXPERTS,),
        }.items():
            param = nn.Parameter(torch.zeros(shape), requires_grad=False)
            self.register_parameter(name, param)

    def _expert_routing_tables(self) -> None:
        return None


class Experts:
    """The start of TRTLLM's experts, which need a GPU: post-load processing is real."""

    def __init__(self, quant_config: Any):
        self.quant_config = quant_config
        self.gemm1_clamp_limit = self.gemm1_alpha = self.gemm1_beta = None


def _fill(layer: ExpertsLayer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in layer.parameters():
        param.data.copy_(torch.rand(param.shape, generator=generator) + 0.5)


def _nvfp4_method() -> Any:
    from vllm.models.muse_spark.nvidia import muse_moe_runner

    cls = muse_moe_runner.MuseSparkModelOptNvFp4FusedMoE
    method: Any = cls.__new__(cls)
    method.use_route_major = False
    method.nvfp4_backend = method.moe = method.experts_cls = None
    method.muse_post_expert_finalize = None
    return method


def _convert(**kwargs: Any) -> tuple:
    """The tensors in the layout they came in, in new memory as a kernel's are."""
    names: tuple[str, ...] = ("w13", "w13_scale", "w13_scale_2", "a13_scale")
    names += tuple(name.replace("13", "2") for name in names)
    return tuple(kwargs[name].clone() for name in names)


def _process(method: Any, layer: ExpertsLayer) -> Any:
    from vllm.models.muse_spark.nvidia import muse_moe_runner

    scales: Any = muse_moe_runner._MuseSparkNvFp4Scales

    class TrtLlmExperts(scales, Experts):
        pass

    def make_kernel(moe_quant_config: Any, **_: Any) -> Any:
        return SimpleNamespace(fused_experts=TrtLlmExperts(moe_quant_config))

    with mock.patch.multiple(
        muse_moe_runner,
        convert_to_nvfp4_moe_kernel_format=_convert,
        make_nvfp4_moe_kernel=make_kernel,
    ):
        method.process_weights_after_loading(layer)
    return method


CONSTANTS = (
    "moe_quant_config._w1.alpha_or_gscale",
    "moe_quant_config._w2.alpha_or_gscale",
    "moe_quant_config._a1.alpha_or_gscale",
    "moe_quant_config._a2.alpha_or_gscale",
    "moe_quant_config.g1_scale_c",
    "moe_kernel.fused_experts.g1_scale_c",
)


def test_nvfp4_constants_keep_their_addresses_across_reruns():
    layer, method = ExpertsLayer(), _nvfp4_method()
    _fill(layer, 0)
    _process(method, layer)
    captured = CapturedReads(method, CONSTANTS)
    parameter = CapturedReads(layer, ["g1_scale_c"])

    for seed in (1, 2, 3):
        _fill(layer, seed)
        _process(method, layer)

        assert not captured.differences()
        assert not parameter.differences()
        cold_layer, cold = ExpertsLayer(), _nvfp4_method()
        _fill(cold_layer, seed)
        _process(cold, cold_layer)
        for path in CONSTANTS:
            warm: Any = lookup(method, path)
            expected: Any = lookup(cold, path)
            assert torch.equal(warm.data, expected.data), path


def test_refilling_twice_changes_nothing():
    model: Any = Gated()
    model.load_weights(_gates(0))
    before = [model.both.alpha.clone(), model.both.beta.clone()]

    refill_derived_tensors(model)

    assert torch.equal(model.both.alpha, before[0])
    assert torch.equal(model.both.beta, before[1])


def test_rebuilt_aiter_experts_read_the_ones_of_the_first():
    from vllm.models.muse_spark.amd.muse_moe_runner import MuseSparkAiterExperts

    layer, addresses = nn.Module(), set()

    for _ in range(3):
        experts: Any = MuseSparkAiterExperts.__new__(MuseSparkAiterExperts)
        experts._unit_weights_bufs = {}
        experts.keep_constants(layer)
        ones = experts._unit_weights(4, 2, torch.device("cpu"))
        assert torch.equal(ones, torch.ones(4, 2))
        addresses.add(ones.data_ptr())

    assert len(addresses) == 1
