# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What drafters fuse of their weights follows them, at its first address.

The classes are vLLM's own. Their layers are stand-ins with the attributes that fusing
reads: a drafter's own constructor needs a target model and a GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from tests.captured_reads import CapturedReads, lookup
from tests.current_platform import use_cuda_like_cpu_platform
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.post_load import refill_derived_tensors
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

HIDDEN, HEAD, LAYERS = 12, 4, 2
CONFIG: Any = SimpleNamespace(dtype=torch.float32)


class Weight(nn.Module):
    """A norm, or a linear layer, as far as fusing looks at one."""

    def __init__(self, *shape: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self.variance_epsilon = 1e-6


class Attention(nn.Module):
    """An attention layer with the attributes of all the drafters' classes."""

    def __init__(self, bias: bool = True):
        super().__init__()
        self.q_size, self.kv_size, self.head_dim, self.num_kv_heads = 8, HEAD, HEAD, 1
        self.use_k_eq_v = True
        self.qkv_proj = Weight(16, HIDDEN, bias=bias)
        self.k_proj = Weight(HEAD, HIDDEN, bias=bias)
        self.k_norm, self.q_norm, self.qk_norm = (Weight(HEAD) for _ in range(3))
        self.pre_qkv_proj_norm = Weight(HIDDEN)
        self.__dict__["attn"] = None
        self.__dict__["rotary_emb"] = SimpleNamespace(
            head_size=HEAD, cos_sin_cache=None, is_neox_style=True
        )


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.input_layernorm = Weight(HIDDEN)


def _drafter(cls: type[nn.Module]) -> Any:
    model: Any = cls.__new__(cls)
    nn.Module.__init__(model)
    model.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
    model.hidden_norm = Weight(HIDDEN)
    for layer in model.layers:
        method = UnquantizedLinearMethod.__new__(UnquantizedLinearMethod)
        layer.self_attn.qkv_proj.__dict__["quant_method"] = method
    return model


def _qwen3() -> nn.Module:
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    return _drafter(DFlashQwen3Model)


def _qwen3_dspark() -> nn.Module:
    from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkModel

    return _drafter(Qwen3DSparkModel)


def _laguna() -> nn.Module:
    from vllm.model_executor.models.laguna_dflash import DFlashLagunaModel

    return _drafter(DFlashLagunaModel)


def _gemma4() -> nn.Module:
    from vllm.model_executor.models.gemma4_dspark import Gemma4DSparkModel

    return _drafter(Gemma4DSparkModel)


def _muse() -> nn.Module:
    from vllm.models.muse_spark.common.dspark import MuseSparkDSparkModel

    return _drafter(MuseSparkDSparkModel)


def _beam() -> nn.Module:
    from vllm.models.beam.nvidia.dflash2 import DFlash2BeamModel

    return _drafter(DFlash2BeamModel)


def _xpress() -> nn.Module:
    from vllm.model_executor.models.qwen3_xpress import XPressRefinerHead

    return XPressRefinerHead(16, HIDDEN, block_size=4, rank=8, mlp_hidden=8)


def _lilicorr() -> nn.Module:
    from vllm.model_executor.models.lilicorr import LiLiCorrHead

    head: Any = LiLiCorrHead.__new__(LiLiCorrHead)
    nn.Module.__init__(head)
    head.candidate_topk, head.hidden_size, head.block_size = 3, HIDDEN, 4
    head.num_candidate_slots = 3
    head.relative_slot_bias = nn.Parameter(torch.zeros(2, 7))
    head.same_slot_bias = nn.Parameter(torch.zeros(2))
    head._attn_bias = head._fused_edge_weight = head._fused_edge_bias = None
    head.out_head, head.in_head = (
        Weight(6, HIDDEN, bias=True),
        Weight(6, HIDDEN, bias=True),
    )
    head.factor_input_proj = Weight(HIDDEN, 3 * HIDDEN)
    head.slot_embedding = nn.Parameter(torch.zeros(4, HIDDEN))
    return head


@pytest.fixture(scope="module", autouse=True)
def _process_as_on_cuda() -> Iterator[None]:
    """On the CPU, post-load processing would pack the projections."""
    with use_cuda_like_cpu_platform():
        yield


@dataclass(frozen=True)
class Case:
    """A drafter's module and what it derives from its weights."""

    make: Callable[[], nn.Module]
    derived: tuple[str, ...]


CASES = {
    "qwen3_dflash": Case(
        _qwen3, ("_fused_kv_weight", "_fused_kv_bias", "_k_norm_weights")
    ),
    "qwen3_dspark": Case(
        _qwen3_dspark, ("_fused_kv_weight", "_fused_kv_bias", "_k_norm_weights")
    ),
    "laguna_dflash": Case(
        _laguna,
        ("_kv_weights", "_kv_biases", "_input_layernorm_weights", "_k_norm_weights"),
    ),
    "gemma4_dspark": Case(
        _gemma4,
        ("_fused_k_weight", "_fused_k_bias", "_k_norm_weights", "_v_norm_weights"),
    ),
    "muse_spark_dspark": Case(_muse, ("_stacked_kv_weight",)),
    "beam_dflash2": Case(_beam, ("_context_kv_weight", "_context_k_norm_weight")),
    "qwen3_xpress": Case(
        _xpress,
        tuple(
            f"_fused_buf.{name}"
            for name in ("whc_t", "wlat_t", "mix_kjc", "wg_t", "wu_t", "wd_t", "w2_t")
        ),
    ),
    "lilicorr": Case(
        _lilicorr,
        (
            "_attn_bias",
            "_fused_edge_weight",
            "_fused_edge_bias",
            *(f"_factor_input_splits.{index}" for index in range(3)),
            "_rank_frac_col",
            "_is_top1_col",
        ),
    ),
}


def _weights(module: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(param.shape, generator=generator)
        for name, param in module.named_parameters()
    }


def _load(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    for name, param in module.named_parameters():
        param.data.copy_(weights[name])


def _assert_as_cold(case: Case, warm: nn.Module, seed: int) -> None:
    cold = case.make()
    _load(cold, _weights(cold, seed))
    refill_derived_tensors(cold)
    for path in case.derived:
        expected: Any = lookup(cold, path)
        assert torch.equal(lookup(warm, path), expected), path


@pytest.mark.parametrize("name", CASES)
def test_refilling_over_changing_weights_ends_as_a_cold_start(name: str):
    case = CASES[name]
    module = case.make()
    _load(module, _weights(module, 0))
    refill_derived_tensors(module)
    captured = CapturedReads(module, case.derived)

    for seed in (1, 2, 3):
        _load(module, _weights(module, seed))
        refill_derived_tensors(module)

        assert not captured.differences()
        _assert_as_cold(case, module, seed)


@pytest.mark.parametrize("name", CASES)
def test_what_is_derived_is_copied_and_needs_no_gradient(name: str):
    case = CASES[name]
    module = case.make()
    refill_derived_tensors(module)
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}

    for path in case.derived:
        tensor: Any = lookup(module, path)
        assert not tensor.requires_grad, path
        assert tensor.untyped_storage().data_ptr() not in parameters, path


@pytest.mark.parametrize("name", CASES)
def test_a_trial_load_on_the_meta_device_leaves_what_is_held(name: str):
    case = CASES[name]
    module = case.make()
    _load(module, _weights(module, 0))
    refill_derived_tensors(module)
    captured = CapturedReads(module, case.derived)
    before: Any = {path: lookup(module, path).clone() for path in case.derived}

    parameters = {**dict(module.named_parameters())}
    for path, param in parameters.items():
        owner, _, leaf = path.rpartition(".")
        meta = nn.Parameter(param.data.to("meta"), requires_grad=False)
        setattr(module.get_submodule(owner), leaf, meta)
    refill_derived_tensors(module)

    assert not captured.differences()
    for path in case.derived:
        assert torch.equal(lookup(module, path), before[path])


@pytest.mark.parametrize("name", ["qwen3_dflash", "laguna_dflash", "lilicorr"])
def test_weights_that_the_cpu_has_packed_and_released_leave_what_is_held(name: str):
    case = CASES[name]
    module = case.make()
    _load(module, _weights(module, 0))
    refill_derived_tensors(module)
    captured = CapturedReads(module, case.derived)

    for child in module.modules():
        if isinstance(child, Weight) and child.weight.dim() == 2:
            child.weight = nn.Parameter(torch.empty(0), requires_grad=False)
    refill_derived_tensors(module)

    assert not captured.differences()
    _assert_as_cold(case, module, 0)


class Root(nn.Module):
    """Loads by the loaders of its parameters, as AutoWeightsLoader does."""

    def __init__(self, drafter: nn.Module):
        super().__init__()
        self.drafter = drafter

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[f"drafter.{name}"]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)
        # What the tail of upstream's `load_weights` calls.
        refill_derived_tensors(self)


@pytest.mark.parametrize("calls", ["one", "many"])
@pytest.mark.parametrize("mode", ["layerwise", "direct"])
@pytest.mark.parametrize("name", CASES)
def test_captured_reads_follow_a_reload(name: str, mode: Any, calls: str):
    case = CASES[name]
    root = Root(case.make())
    record_metadata_for_reloading(root)
    root.load_weights(list(_weights(root.drafter, 0).items()))
    captured = CapturedReads(root.drafter, case.derived)

    for seed in (1, 2, 3):
        weights = list(_weights(root.drafter, seed).items())
        start_reload(root, mode)
        for bucket in [weights] if calls == "one" else [[pair] for pair in weights]:
            root.load_weights(bucket)
        finish_reload(root, CONFIG)

        assert not captured.differences()
        cold = Root(case.make())
        cold.load_weights(weights)
        for path in case.derived:
            expected: Any = lookup(cold.drafter, path)
            assert torch.equal(lookup(root.drafter, path), expected)


def test_xpress_loads_its_raw_mixer_folded():
    head: Any = _xpress()
    raw = torch.randn(8, 4, 4)

    head.mix_L.weight_loader(head.mix_L, raw)

    assert torch.equal(head.mix_L.data, raw.tril() + torch.eye(4))


@pytest.mark.parametrize("architecture", ["qwen3", "gemma4"])
def test_a_later_call_without_the_confidence_head_keeps_it(architecture: str):
    model: Any = _qwen3_dspark() if architecture == "qwen3" else _gemma4()
    refill_derived_tensors(model)
    model.confidence_head = head = Weight(1, HIDDEN)
    model.use_aux_hidden_state, model.mask_token_id = True, None
    cls: Any
    if architecture == "qwen3":
        from vllm.model_executor.models.qwen3_dspark import Qwen3DSparkForCausalLM

        cls = Qwen3DSparkForCausalLM
    else:
        from vllm.model_executor.models.gemma4_dspark import Gemma4DSparkForCausalLM

        cls = Gemma4DSparkForCausalLM
    causal: Any = cls.__new__(cls)
    nn.Module.__init__(causal)
    causal.model, causal.target_vocab_size = model, 16
    causal.config = SimpleNamespace(vocab_size=16, draft_vocab_size=16)

    causal.load_weights([("hidden_norm.weight", torch.ones(HIDDEN))])

    assert model.confidence_head is head


def _gemma4_mtp() -> Any:
    from vllm.model_executor.models.gemma4_mtp import Gemma4MTP

    model: Any = Gemma4MTP.__new__(Gemma4MTP)
    nn.Module.__init__(model)
    model._stable_full_lm_head_weight = model._suppress_idx = None
    model._suppress_token_ids = [3, 5]
    model.lm_head = Weight(4, HIDDEN)
    model.masked_embedding = nn.Module()
    model.masked_embedding.vocab_size = 7
    return model


def _two_ranks() -> Any:
    """The other rank's half of the weight is the negative of this one's."""
    return mock.patch.multiple(
        "vllm.model_executor.models.gemma4_mtp",
        get_tensor_model_parallel_world_size=lambda: 2,
        tensor_model_parallel_all_gather=lambda t, dim: torch.cat((t, -t), dim),
    )


def test_gemma4_mtp_gathers_its_lm_head_into_the_first_buffer():
    model = _gemma4_mtp()
    with _two_ranks():
        model.load_weights([("lm_head.weight", torch.zeros(4, HIDDEN))])
        refill_derived_tensors(model)
        paths = ["_stable_full_lm_head_weight", "_suppress_idx"]
        captured = CapturedReads(model, paths)

        for seed in (1, 2, 3):
            weight = torch.randn(
                4, HIDDEN, generator=torch.Generator().manual_seed(seed)
            )
            model.load_weights([("lm_head.weight", weight)])
            refill_derived_tensors(model)

            assert not captured.differences()
            full = model._get_full_lm_head_weight()
            assert full is model._stable_full_lm_head_weight
            assert torch.equal(full, torch.cat((weight, -weight))[:7])
            assert model._suppress_idx.tolist() == [3, 5]


def test_gemma4_mtp_reads_its_lm_head_where_it_is_not_spread():
    model = _gemma4_mtp()
    with mock.patch(
        "vllm.model_executor.models.gemma4_mtp.get_tensor_model_parallel_world_size",
        lambda: 1,
    ):
        refill_derived_tensors(model)
        full = model._get_full_lm_head_weight()

    assert model._stable_full_lm_head_weight is None
    assert full.data_ptr() == model.lm_head.weight.data_ptr()
