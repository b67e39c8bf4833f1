# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What Kimi-K3 derives from its weights follows them, at its first address.

The kernels of the specialized decode need a GPU. What it packs for them does not.
"""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.post_load import refill_derived_tensors
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.models.kimi_k3.nvidia import mla

CONFIG: Any = SimpleNamespace(dtype=torch.float32)
HIDDEN, HEADS, RANK, NOPE, VALUE = 7168, 2, 4, 3, 5


def _filled(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) + 0.5


class Mla(nn.Module):
    """A model of one MLA layer, which takes its scales from its children."""

    def __init__(self) -> None:
        super().__init__()
        attention: Any = mla.MultiHeadLatentAttention.__new__(
            mla.MultiHeadLatentAttention
        )
        nn.Module.__init__(attention)
        attention.kv_b_proj = nn.Linear(RANK, HEADS * (NOPE + VALUE), bias=False)
        attention.register_buffer("_q_scale", torch.ones(()))
        attention.register_buffer("_k_scale", torch.ones(()))
        attention.quant_config = None
        attention.kv_lora_rank, attention.num_local_heads = RANK, HEADS
        attention.qk_nope_head_dim, attention.v_head_dim = NOPE, VALUE
        self.attention = attention

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)


def _split(kv_b_proj: Any, dtype: torch.dtype, *sizes: int) -> Any:
    """The operator's arithmetic for an unquantized projection."""
    weight = kv_b_proj.weight.detach().T.view(RANK, HEADS, NOPE + VALUE)
    return weight.split([NOPE, VALUE], dim=-1)


def _scales(value: float) -> Any:
    """Has post-load processing find these KV-cache scales."""

    def fill(layer: Any, register_buffer: bool = False) -> None:
        layer._q_scale.fill_(value)
        layer._k_scale.fill_(2 * value)

    return mock.patch.multiple(
        mla, split_kv_b_proj=_split, set_default_quant_scales=fill
    )


def test_reciprocal_scales_keep_their_addresses_when_processing_runs_again():
    model: Any = Mla()
    with _scales(1.0):
        model.attention.process_weights_after_loading(torch.float32)
    paths = ["attention._q_scale_inv", "attention._k_scale_inv"]
    captured = CapturedReads(model, paths)

    for value in (2.0, 4.0, 8.0):
        with _scales(value):
            model.attention.process_weights_after_loading(torch.float32)

        assert not captured.differences()
        assert model.attention._q_scale_inv.tolist() == [1 / value]
        assert model.attention._k_scale_inv.tolist() == [1 / (2 * value)]


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_reciprocal_scales_follow_a_reload(mode: Any):
    assert issubclass(mla.MultiHeadLatentAttention, AttentionLayerBase)
    model: Any = Mla()
    record_metadata_for_reloading(model)
    with _scales(1.0):
        model.attention.process_weights_after_loading(torch.float32)
    paths = ["attention._q_scale_inv", "attention._k_scale_inv"]
    captured = CapturedReads(model, paths)

    for value in (2.0, 4.0, 8.0):
        weight = _filled(int(value), HEADS * (NOPE + VALUE), RANK)
        with _scales(value):
            start_reload(model, mode)
            model.load_weights([("attention.kv_b_proj.weight", weight)])
            finish_reload(model, CONFIG)

        assert not captured.differences()
        assert model.attention._q_scale_inv.tolist() == [1 / value]


class MoeLayer(nn.Module):
    """A decoder layer with the weights that are packed for its MoE front."""

    layer_idx, is_moe_layer = 1, True

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.gate = nn.Module()
        self.mlp.routed_expert_down_proj = nn.Module()
        self.load(0)

    def load(self, seed: int) -> None:
        for owner, rows in ((self.mlp.gate, 896), (self.down, 3584)):
            weight = torch.randint(
                0, 100, (rows, 1), generator=torch.Generator().manual_seed(seed)
            )
            weight = weight.to(torch.bfloat16).expand(rows, HIDDEN).contiguous()
            if hasattr(owner, "weight"):
                owner.weight.data.copy_(weight)
            else:
                owner.weight = nn.Parameter(weight, requires_grad=False)

    @property
    def down(self) -> Any:
        return self.mlp.routed_expert_down_proj


def _kda(attention: Any) -> Any:
    from vllm.models.kimi_k3.nvidia.specialized_decode.cutedsl.kda.prepared import (
        PreparedKda,
    )

    return PreparedKda(attention, {}, True)


def _kda_attention() -> Any:
    attention: Any = nn.Module()
    attention.conv1d, attention.o_norm = nn.Module(), nn.Module()
    attention.f_b_proj = nn.Module()
    attention.conv1d.weight = nn.Parameter(_filled(0, 3 * 6, 1, 4))
    attention.conv1d.bias = None
    attention.o_norm.weight = nn.Parameter(_filled(0, 128).bfloat16())
    attention.o_norm.eps = 1e-5
    attention.f_b_proj.weight = nn.Parameter(_filled(0, 2, 2))
    attention.dt_bias = nn.Parameter(_filled(0, 2))
    attention.A_log = nn.Parameter(_filled(0, 2))
    attention.gate_lower_bound = -5.0
    return attention


def _dense(padded: bool) -> Any:
    from vllm.models.kimi_k3.nvidia.specialized_decode.cutedsl.moe import dense

    hidden = 130 if padded else 128
    mlp: Any = nn.Module()
    mlp.gate_up_proj, mlp.down_proj = nn.Module(), nn.Module()
    mlp.gate_up_proj.weight = nn.Parameter(_filled(0, 2 * hidden, 4))
    mlp.down_proj.weight = nn.Parameter(_filled(0, 4, hidden))
    mlp.act_fn = SimpleNamespace(beta=1.0, linear_beta=None)

    class Projection:
        """The kernel, which takes its weight by address."""

        def __init__(self, weight: torch.Tensor, policies: Any):
            self.weight = weight.detach()

        def prepare(self) -> None: ...

    with mock.patch.multiple(
        dense,
        PreparedProjection=Projection,
        _compile_activation=mock.DEFAULT,
        architecture=mock.DEFAULT,
    ):
        return dense.PreparedDenseMLP(mlp, (1,))


def test_the_prepared_kda_core_follows_its_weights():
    attention = _kda_attention()
    core = _kda(attention)
    captured = CapturedReads(core, ["weights.0", "weights.5"])

    for seed in (1, 2, 3):
        attention.conv1d.weight.data.copy_(_filled(seed, 3 * 6, 1, 4))
        attention.o_norm.weight.data.copy_(_filled(seed, 128))
        with torch.no_grad():
            core.refill_derived_tensors()

        assert not captured.differences()
        cold = _kda(attention)
        assert torch.equal(core.weights[0], cold.weights[0])
        assert torch.equal(core.weights[5], cold.weights[5])


@pytest.mark.parametrize("padded", [True, False])
def test_the_prepared_dense_mlp_follows_its_down_projection(padded: bool):
    dense = _dense(padded)
    captured = CapturedReads(dense, ["down.weight"])

    for seed in (1, 2, 3):
        weight = _filled(seed, *dense.mlp_down.weight.shape)
        dense.mlp_down.weight.data.copy_(weight)
        with torch.no_grad():
            dense.refill_derived_tensors()

        assert not captured.differences()
        assert torch.equal(dense.down.weight[:, : dense.hidden], weight)
        assert not dense.down.weight[:, dense.hidden :].any()


@pytest.mark.parametrize("tp", [8, 16])
def test_the_specialized_decode_refills_all_that_it_packed(tp: int):
    from vllm.models.kimi_k3.nvidia.model import KimiLinearForCausalLM
    from vllm.models.kimi_k3.nvidia.specialized_decode.runtime import decode, providers

    layer, attention, dense = MoeLayer(), _kda_attention(), _dense(padded=True)
    built: Any = decode.SpecializedDecode.__new__(decode.SpecializedDecode)
    built.layers, built.rank, built.tp = (layer,), 1, tp
    built.packed_fronts = {1: providers.pack_front(layer.mlp, 1, tp)}
    built.attention = {1: SimpleNamespace(core=_kda(attention))}
    built.feed_forward = {1: dense}
    model: Any = KimiLinearForCausalLM.__new__(KimiLinearForCausalLM)
    nn.Module.__init__(model)
    model.__dict__["specialized_decode"] = built
    paths = [
        "packed_fronts.1",
        "attention.1.core.weights.0",
        "feed_forward.1.down.weight",
    ]
    captured = CapturedReads(built, paths)

    layer.load(1)
    attention.conv1d.weight.data.copy_(_filled(1, 3 * 6, 1, 4))
    dense.mlp_down.weight.data.copy_(_filled(1, 4, 130))
    refill_derived_tensors(model)

    assert not captured.differences()
    expected = providers.pack_front(layer.mlp, 1, tp)
    assert torch.equal(built.packed_fronts[1], expected)
    assert torch.equal(built.attention[1].core.weights[0], _kda(attention).weights[0])
    assert torch.equal(dense.down.weight[:, :130], _filled(1, 4, 130))


def test_a_model_without_a_specialized_decode_has_nothing_to_refill():
    from vllm.models.kimi_k3.nvidia.model import KimiLinearForCausalLM

    model: Any = KimiLinearForCausalLM.__new__(KimiLinearForCausalLM)
    nn.Module.__init__(model)
    model.specialized_decode = None

    refill_derived_tensors(model)
