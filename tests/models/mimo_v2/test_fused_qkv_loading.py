# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Weight and scales of a fused FP8 projection of MiMo-V2 load each alone."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.models.mimo_v2.tiny_mimo import (
    MimoModel,
    TinyMimo,
    Weights,
    build,
    held,
    load,
    loading,
    make_weights,
    process,
    projections_of,
)
from tests.stock_vllm import run_on_stock
from tests.tensor_parallel import run_tp2, tensor_parallel_group

REQUANTIZED = TinyMimo()
KEPT = TinyMimo(declared=True)
SPECS = {
    "kept-with-padding": KEPT,
    "requantized": REQUANTIZED,
    "requantized-continuous": TinyMimo(by_chunk=False),
    "two-chunks": TinyMimo(chunks=2),
    "two-chunks-continuous": TinyMimo(chunks=2, by_chunk=False),
    "one-chunk": TinyMimo(chunks=1),
    "draft": TinyMimo(draft=True),
    "draft-two-chunks-continuous": TinyMimo(chunks=2, by_chunk=False, draft=True),
    "draft-not-quantized": TinyMimo(draft=True, quantized=False),
    "not-fused": TinyMimo(fused=False),
}

CUT_IN_TWO = ("kept-with-padding", "requantized", "two-chunks-continuous", "draft")
"""Those that two ranks load. `test_fused_qkv_layout` has more ranks and layouts."""

Held = dict[str, torch.Tensor]


def _pairs(weights: Weights) -> list[Weights]:
    return [weights]


def _weights_first(weights: Weights) -> list[Weights]:
    return [[one] for one in weights]


def _scales_first(weights: Weights) -> list[Weights]:
    return [[one] for one in reversed(weights)]


Order = Callable[[Weights], list[Weights]]


def _cold_start(spec: TinyMimo, order: Order, seed: int = 7) -> MimoModel:
    model = build(spec)
    load(model, order(make_weights(spec, seed)))
    process(model)
    return model


def _load_each(names: Iterable[str], order: Order) -> dict[str, Held]:
    return {name: held(_cold_start(SPECS[name], order)) for name in names}


def _load_in_two(order: Order) -> list[dict[str, Held]]:
    return run_tp2(_load_each, CUT_IN_TWO, order)


class _OfStock(NamedTuple):
    loaded: dict[str, Held]
    reused_memory: Held
    """After halves in two calls, whose memory does not last."""
    reloaded: Held
    """After a layerwise reload of other weights."""


def _run_on_stock() -> _OfStock:
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        loaded = _load_each(SPECS, _pairs)
        return _OfStock(loaded, _load_reused_memory(), _reload_layerwise())


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> _OfStock:
    return run_on_stock(stock_tree, _run_on_stock)


@pytest.fixture(scope="module")
def loaded_by_one() -> list[dict[str, Held]]:
    """What this series holds after single tensors, by order."""
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        return [_load_each(SPECS, order) for order in (_weights_first, _scales_first)]


@pytest.fixture(scope="module")
def loaded_by_two(stock_tree: Path) -> Any:
    """What stock holds after pairs, and this series after single tensors, by rank."""
    pairs = run_on_stock(stock_tree, _load_in_two, _pairs)
    return list(zip(pairs, _load_in_two(_scales_first), strict=True))


@pytest.fixture
def one_process() -> Iterator[None]:
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        yield


def _differences(found: Held, expected: Held) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name in found if not torch.equal(found[name], expected[name])]


@pytest.mark.parametrize("order", [0, 1], ids=["weights-first", "scales-first"])
@pytest.mark.parametrize("name", SPECS)
def test_halves_in_separate_calls_give_what_stock_makes_of_a_pair(
    stock: _OfStock, loaded_by_one: list[dict[str, Held]], name: str, order: int
):
    assert _differences(loaded_by_one[order][name], stock.loaded[name]) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", CUT_IN_TWO)
def test_a_rank_takes_what_stock_takes_of_a_pair(
    loaded_by_two: Any, name: str, rank: int
):
    stock, ours = loaded_by_two[rank]
    assert _differences(ours[name], stock[name]) == []


def test_some_of_the_layouts_are_quantized_again(one_process: None):
    found = {}
    for name in ("kept-with-padding", "requantized", "two-chunks"):
        layers = projections_of(_cold_start(SPECS[name], _pairs)).values()
        found[name] = [layer.quant_method.requantizes for layer in layers]
    assert found == {
        "kept-with-padding": [False, False],
        "requantized": [True, False],
        "two-chunks": [True, False],
    }


@pytest.mark.parametrize("spec", [KEPT, REQUANTIZED], ids=["kept", "requantized"])
def test_scales_of_another_dtype_load_as_their_values(
    one_process: None, spec: TinyMimo
):
    e8m0 = [
        (name, tensor.to(torch.float8_e8m0fnu) if "scale" in name else tensor)
        for name, tensor in make_weights(spec)
    ]
    values = [
        (name, tensor.float() if "scale" in name else tensor) for name, tensor in e8m0
    ]
    models = [build(spec), build(spec)]
    for model, weights in zip(models, (e8m0, values), strict=True):
        load(model, [weights])
        process(model)
    assert _differences(held(models[0]), held(models[1])) == []


def test_processing_twice_changes_nothing(one_process: None):
    model = _cold_start(REQUANTIZED, _pairs)
    before = held(model)
    process(model)
    assert _differences(held(model), before) == []
    (layer, _) = projections_of(model).values()
    assert not layer.quant_method.reloads_per_tensor(layer)


@pytest.mark.parametrize("missing", ["weight", "weight_scale_inv"])
@pytest.mark.parametrize("spec", [KEPT, REQUANTIZED], ids=["kept", "requantized"])
def test_a_missing_half_is_refused(one_process: None, spec: TinyMimo, missing: str):
    model = build(spec)
    name = f"model.layers.0.self_attn.qkv_proj.{missing}"
    load(model, [[one for one in make_weights(spec) if one[0] != name]])
    with pytest.raises(ValueError, match=rf"{name}: found NaN; expected the checkp"):
        process(model)


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, :-1]


def _with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[3, 1] = float("nan")
    return tensor


_WEIGHT, _SCALE = "weight", "weight_scale_inv"


@pytest.mark.parametrize("spec", [KEPT, REQUANTIZED], ids=["kept", "requantized"])
@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        (_WEIGHT, _cut, r"shape \(2815, 256\); expected .* shape \(2816, 256\)"),
        (_WEIGHT, _narrow, r"shape \(2816, 255\); expected .* shape \(2816, 256\)"),
        (_WEIGHT, torch.Tensor.bfloat16, "bfloat16 .*; expected torch.float8_e4m3fn"),
        (_SCALE, _cut, "found 23 rows of scales; expected 24, .* or 22"),
        (_SCALE, _narrow, r"shape \(24, 1\); expected 2 columns"),
        (_SCALE, _with_nan, "NaN in it; expected numbers"),
        (_SCALE, torch.Tensor.int, "dtype torch.int32 .*; expected two dimensions and"),
    ],
)
def test_a_tensor_of_another_layout_is_refused(
    one_process: None, spec: TinyMimo, kind: str, damage: Any, message: str
):
    model = build(spec)
    before = held(model)
    name = f"model.layers.0.self_attn.qkv_proj.{kind}"
    damaged = damage(dict(make_weights(spec))[name])
    with pytest.raises(ValueError, match=f"checkpoint tensor {name}: .*{message}"):
        load(model, [[(name, damaged)]])
    assert _differences(held(model), before) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TinyMimo(quantized=False), "takes no fused FP8; expected a weight of torch.b"),
        (TinyMimo(chunks=3, draft=True), "8 KV heads; expected separate q_proj"),
    ],
    ids=["not-quantized", "uneven"],
)
def test_fused_fp8_of_another_model_is_refused(
    one_process: None, spec: TinyMimo, message: str
):
    model = build(spec)
    for name, tensor in make_weights(TinyMimo(draft=spec.draft))[:2]:
        with pytest.raises(ValueError, match=f"checkpoint tensor {name}: .*{message}"):
            load(model, [[(name, tensor)]])


def test_continuous_scales_are_refused_where_k_and_v_stay_together(one_process: None):
    model = build(KEPT)
    name, scale = make_weights(TinyMimo(by_chunk=False))[1]
    with pytest.raises(ValueError, match=f"{name}: .*expected 24 rows, whose blocks"):
        load(model, [[(name, scale)]])


def _load_from_reused_memory(model: MimoModel, calls: list[Weights]) -> None:
    """As transports do that reuse their buffers: nothing handed over lasts."""
    for weights in calls:
        load(model, [weights])
        for _, tensor in weights:
            tensor.view(torch.uint8).fill_(1)


def _reload(model: MimoModel, calls: list[Weights], mode: Any) -> None:
    from vllm.model_executor.model_loader.reload import (
        abort_reload,
        finish_reload,
        start_reload,
    )

    with loading(model.vllm_config):
        start_reload(model.module, mode)
        try:
            _load_from_reused_memory(model, calls)
            finish_reload(model.module, model.model_config)
        except BaseException:
            abort_reload(model.module)
            raise


def _addresses(model: MimoModel) -> dict[str, int]:
    parameters = model.module.named_parameters(remove_duplicate=False)
    return {name: param.data_ptr() for name, param in parameters}


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
@pytest.mark.parametrize(
    "name",
    ["kept-with-padding", "requantized", "draft", "draft-not-quantized", "not-fused"],
)
def test_a_reload_is_a_cold_start_in_place(one_process: None, name: str, mode: str):
    spec = SPECS[name]
    model = _cold_start(spec, _pairs, seed=7)
    before = _addresses(model)
    for seed in (8, 9):
        _reload(model, _scales_first(make_weights(spec, seed)), mode)
        fresh = held(_cold_start(spec, _pairs, seed))
        assert _differences(held(model), fresh) == []
        assert _addresses(model) == before


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_a_reload_without_a_half_that_is_needed_is_refused(
    one_process: None, mode: str
):
    model = _cold_start(REQUANTIZED, _pairs)
    with pytest.raises(RuntimeError, match="self_attn.qkv_proj misses run_scale_inv"):
        _reload(model, [make_weights(REQUANTIZED, seed=8)[:1]], mode)


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_a_half_that_is_left_out_stays_where_blocks_are_kept(
    one_process: None, mode: str
):
    model = _cold_start(KEPT, _pairs)
    scale = make_weights(KEPT, seed=8)[1]
    _reload(model, [[scale]], mode)

    fresh = build(KEPT)
    load(fresh, [make_weights(KEPT), [make_weights(KEPT, seed=8)[1]]])
    process(fresh)
    assert _differences(held(model), held(fresh)) == []


def _load_reused_memory() -> Held:
    model = build(KEPT)
    _load_from_reused_memory(model, _scales_first(make_weights(KEPT)))
    process(model)
    return held(model)


def test_stock_loses_a_half_that_comes_in_a_call_before(stock: _OfStock):
    pair = stock.loaded["kept-with-padding"]
    assert _differences(stock.reused_memory, pair) == [
        f"model.layers.{layer}.self_attn.qkv_proj.weight_scale_inv" for layer in (0, 1)
    ]


def _reload_layerwise() -> Held:
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    model = _cold_start(KEPT, _pairs)
    with loading(model.vllm_config):
        initialize_layerwise_reload(model.module)
        load(model, [make_weights(KEPT, seed=8)])
        finalize_layerwise_reload(model.module, model.model_config)
    return held(model)


def test_a_layerwise_reload_of_stock_keeps_the_old_weights(stock: _OfStock):
    before = stock.loaded["kept-with-padding"]
    assert _differences(stock.reloaded, before) == []
