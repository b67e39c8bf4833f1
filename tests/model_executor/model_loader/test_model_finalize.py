# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Loading loads, and the post-load hook finalizes: once a start, and once a reload."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.model_executor.model_loader.bare_models import (
    CONFIG,
    HIDDEN,
    Weights,
    bare,
    broadcast_of,
    cold_start,
    deepseek,
    deepseek_vision,
    deepseek_weights,
    first_layer,
    kimi_draft,
    kimi_weights,
    load,
    vision_weights,
)
from tests.tensor_parallel import tensor_parallel_group
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.sparse_nccl_engine import (
    SparseNCCLWeightTransferEngine,
)
from vllm.model_executor.model_loader.reload import (
    abort_reload,
    finish_reload,
    start_reload,
)
from vllm.model_executor.model_loader.reload.refusals import FINALIZES_IN_LOAD_WEIGHTS
from vllm.model_executor.models.qwen3_dspark import DSparkConfidenceHead
from vllm.models.deepseek_v4.common import vl_model as deepseek_v4_vl
from vllm.models.deepseek_v4.nvidia import dspark as deepseek_v4_dspark
from vllm.models.deepseek_v4.nvidia import model as deepseek_v4
from vllm.models.deepseek_v41.nvidia import dspark as deepseek_v41_dspark
from vllm.models.deepseek_v41.nvidia import model as deepseek_v41
from vllm.models.deepseek_v41.nvidia import vl_model as deepseek_v41_vl

FAMILIES = {
    "v4": (lambda: deepseek(deepseek_v4), deepseek_weights),
    "v4-vision": (lambda: deepseek_vision(deepseek_v4_vl), vision_weights),
    "v41": (lambda: deepseek(deepseek_v41), deepseek_weights),
    "v41-vision": (lambda: deepseek_vision(deepseek_v41_vl), vision_weights),
}
Build = Callable[[], Any]
MakeWeights = Callable[[int], Weights]
families = pytest.mark.parametrize(
    ("build", "make_weights"), FAMILIES.values(), ids=FAMILIES.keys()
)
dsparks = pytest.mark.parametrize(
    "dspark", [deepseek_v4_dspark, deepseek_v41_dspark], ids=["v4", "v41"]
)


@pytest.fixture(scope="module", autouse=True)
def _process_groups() -> Iterator[None]:
    # On vLLM's CPU platform, processing would release what it repacks.
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        yield


def one_a_call(weights: Weights) -> list[Weights]:
    return [{name: tensor} for name, tensor in weights.items()]


def reload(model: torch.nn.Module, calls: list[Weights]) -> None:
    start_reload(model, "direct")
    try:
        load(model, calls)
        finish_reload(model, CONFIG)
    except BaseException:
        abort_reload(model)
        raise


@pytest.fixture
def hook_runs(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What each run of the finalisation of DeepSeek saw of the first layer."""
    seen: list[torch.Tensor] = []
    for module in (deepseek_v4, deepseek_v41):
        finalize = module.DeepseekV4Model.finalize_mhc_broadcast_weights

        def spy(self: Any, finalize: Callable = finalize) -> None:
            seen.append(self.layers[0].hc_attn_fn.clone())
            finalize(self)

        monkeypatch.setattr(
            module.DeepseekV4Model, "finalize_mhc_broadcast_weights", spy
        )
    return seen


@families
def test_loading_does_not_finalize(build: Build, make_weights: MakeWeights):
    model = build()

    load(model, [make_weights(0), make_weights(1)])

    assert torch.equal(
        first_layer(model).hc_attn_fn, make_weights(1)["layers.0.hc_attn_fn"]
    )
    assert first_layer(model).hc_attn_fn_broadcast is None


@families
@pytest.mark.parametrize("split", [lambda weights: [weights], one_a_call])
def test_a_cold_start_finalizes_once_whatever_the_number_of_calls(
    build: Build,
    make_weights: MakeWeights,
    split: Callable[[Weights], list[Weights]],
    hook_runs: list[torch.Tensor],
):
    weights = make_weights(0)

    model = cold_start(build, split(weights))

    assert len(hook_runs) == 1
    assert torch.equal(hook_runs[0], weights["layers.0.hc_attn_fn"])
    assert torch.equal(first_layer(model).hc_attn_fn_broadcast, broadcast_of(weights))


@families
def test_a_start_without_weights_finalizes_too(
    build: Build, make_weights: MakeWeights, hook_runs: list[torch.Tensor]
):
    model = cold_start(build, [])

    assert len(hook_runs) == 1
    assert first_layer(model).hc_attn_fn_broadcast.count_nonzero() == 0


@families
@pytest.mark.parametrize("split", [lambda weights: [weights], one_a_call])
def test_each_reload_finalizes_once_in_place_with_the_new_weights(
    build: Build,
    make_weights: MakeWeights,
    split: Callable[[Weights], list[Weights]],
    hook_runs: list[torch.Tensor],
):
    model = cold_start(build, [make_weights(0)])
    derived = first_layer(model).hc_attn_fn_broadcast
    address = derived.data_ptr()

    for seed in (1, 2):
        hook_runs.clear()
        reload(model, split(make_weights(seed)))

        assert len(hook_runs) == 1
        assert torch.equal(hook_runs[0], make_weights(seed)["layers.0.hc_attn_fn"])
        assert first_layer(model).hc_attn_fn_broadcast is derived
        assert derived.data_ptr() == address
        assert torch.equal(derived, broadcast_of(make_weights(seed)))


@families
def test_what_is_derived_stays_as_it_is_until_the_reload_is_finished(
    build: Build, make_weights: MakeWeights
):
    model = cold_start(build, [make_weights(0)])

    start_reload(model, "direct")
    load(model, one_a_call(make_weights(1)))
    before = first_layer(model).hc_attn_fn_broadcast.clone()
    finish_reload(model, CONFIG)

    assert torch.equal(before, broadcast_of(make_weights(0)))


def test_a_vision_model_is_as_safe_as_its_language_model():
    class Undeclared(deepseek_v4.DeepseekV4ForCausalLM):
        reload_safe_post_load = False

    def build() -> Any:
        model = deepseek_vision()
        model.language_model.__class__ = Undeclared
        return model

    model = cold_start(build, [vision_weights(0)])
    before = model.state_dict()

    with pytest.raises(RuntimeError, match="is not declared safe to run again"):
        start_reload(model, "direct")
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


class _Hooked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)

    def process_weights_after_loading(self) -> None:
        self.doubled = self.linear.weight * 2


class _Declared(_Hooked):
    reload_safe_post_load = True

    def process_weights_after_loading(self) -> None:
        pass


class _Overridden(_Declared):
    def process_weights_after_loading(self) -> None:
        self.doubled = self.linear.weight * 2


class _Inherited(_Declared):
    pass


@pytest.mark.parametrize("cls", [_Hooked, _Overridden])
def test_a_hook_that_is_not_declared_is_refused_by_name(cls: type[_Hooked]):
    model = cold_start(cls, [])
    before = model.linear.weight.clone()

    with pytest.raises(RuntimeError, match=f"{cls.__name__}.process_weights_after_lo"):
        start_reload(model, "direct")
    assert torch.equal(model.linear.weight, before)


@pytest.mark.parametrize("cls", [_Declared, _Inherited])
def test_a_declared_hook_is_accepted(cls: type[_Hooked]):
    model = cold_start(cls, [])

    start_reload(model, "direct")
    abort_reload(model)


@pytest.mark.parametrize("name", ["tests.module_of_a_model", "tests.other.Finalizing"])
def test_a_model_that_finalizes_in_load_weights_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    class Finalizing(_Declared):
        __module__ = "tests.other" if name.startswith("tests.other") else name
        __qualname__ = "Finalizing"

        def load_weights(self, weights: Any) -> set[str]:
            return set()

    monkeypatch.setattr(
        "vllm.model_executor.model_loader.reload.refusals.FINALIZES_IN_LOAD_WEIGHTS",
        FINALIZES_IN_LOAD_WEIGHTS | {name},
    )
    with pytest.raises(RuntimeError, match="Finalizing.load_weights post-processes"):
        start_reload(cold_start(Finalizing, []), "direct")


def test_engram_tables_are_put_on_huge_pages_once(tmp_path):
    collapsed = []
    tables = SimpleNamespace(collapse_huge_pages=lambda: collapsed.append(1))
    model = deepseek(
        deepseek_v41,
        engram=SimpleNamespace(embed_tokens=tables),
        engram_config=SimpleNamespace(use_thp=True),
        model_path=str(tmp_path),
    )

    load(model, one_a_call(deepseek_weights(0)))

    assert len(collapsed) == len(model.model.layers)


def _draft(dspark: Any) -> Any:
    moe = bare(torch.nn.Module, use_native_mega_moe=True)
    with set_current_vllm_config(VllmConfig()):
        head = DSparkConfidenceHead(HIDDEN, prefix="confidence_head")
    model = bare(
        dspark.DSparkDeepseekV4Model,
        layers=torch.nn.ModuleList([bare(torch.nn.Module, ffn=moe)]),
        confidence_head=head,
    )
    config = SimpleNamespace(n_routed_experts=1)
    return bare(
        dspark.DSparkDeepseekV4ForCausalLM,
        model=model,
        config=config,
        pad_shared_expert=False,
    )


HEAD = {"mtp.0.confidence_head.proj.weight": torch.full((1, HIDDEN), 2.0)}


@dsparks
def test_a_draft_without_a_confidence_head_in_its_checkpoint_has_none(dspark: Any):
    model = cold_start(lambda: _draft(dspark), [{}])

    assert model.model.confidence_head is None


@dsparks
@pytest.mark.parametrize("first", [[HEAD], []], ids=["loaded", "dummy"])
def test_a_bucket_without_it_does_not_drop_the_confidence_head(
    dspark: Any, first: list[Weights]
):
    model = cold_start(lambda: _draft(dspark), first)
    head = model.model.confidence_head

    reload(model, [{}, HEAD, {}])

    assert model.model.confidence_head is head
    assert torch.equal(head.proj.weight, HEAD["mtp.0.confidence_head.proj.weight"])


def test_kimi_fills_its_context_metadata_in_place():
    model = cold_start(kimi_draft, [kimi_weights(0)])
    norms, scales = model.model._context_kv_norm_weights, model.model._context_kv_scales
    addresses = norms.data_ptr(), scales.data_ptr()

    model.model.layers[1].self_attn._k_scale.fill_(3.0)
    reload(model, one_a_call(kimi_weights(1)))

    assert model.model._context_kv_norm_weights is norms
    assert model.model._context_kv_scales is scales
    assert (norms.data_ptr(), scales.data_ptr()) == addresses
    assert torch.equal(norms, torch.stack(list(kimi_weights(1).values())))
    assert scales.tolist() == [1.0, 3.0]


def test_a_sparse_update_refreshes_what_the_model_derives():
    model = cold_start(deepseek, [deepseek_weights(0)])
    engine = SparseNCCLWeightTransferEngine.__new__(SparseNCCLWeightTransferEngine)
    engine.model = model

    load(model, [deepseek_weights(1)])
    engine.finish_weight_update()

    assert torch.equal(
        first_layer(model).hc_attn_fn_broadcast, broadcast_of(deepseek_weights(1))
    )


def test_a_sparse_update_runs_no_hook_that_is_not_declared():
    model = cold_start(_Hooked, [])
    engine = SparseNCCLWeightTransferEngine.__new__(SparseNCCLWeightTransferEngine)
    engine.model = model
    doubled = model.doubled

    engine.finish_weight_update()

    assert model.doubled is doubled
