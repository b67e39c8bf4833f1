# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A layerwise reload loses no weights, and leaves a model that can be reloaded."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_executor.model_loader.layerwise_losses import LOSSES, what_is_lost
from tests.model_executor.model_loader.layerwise_toys import (
    CONFIG,
    ROWS,
    SHARDS,
    Embedding,
    Folded,
    Identity,
    OnlineLayer,
    TiedModel,
    ToyLayer,
    ToyModel,
    Transposed,
    Weights,
    Wrapped,
    cold_start,
    contents,
    make_weights,
    reload,
)
from tests.stock_vllm import run_on_stock
from vllm.model_executor.model_loader.reload import (
    abort_layerwise_reload,
    abort_reload,
    finalize_layerwise_processing,
    finish_reload,
    initialize_layerwise_reload,
    record_metadata_for_reloading,
    require_defined,
    start_reload,
)
from vllm.model_executor.model_loader.reload.audit import (
    compare,
    compare_models,
    take_census,
)
from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.undefined_weights import undefined_layers

OLD, NEW = make_weights(0, layers=3), make_weights(1, layers=3)
METHODS = (Identity, Transposed, Folded)


def _model(weights: Weights | None = OLD) -> Any:
    return cold_start(ToyModel(*(ToyLayer(method()) for method in METHODS)), weights)


def _moved(before: Any, model: torch.nn.Module) -> list[str]:
    """What a census finds, other than contents."""
    findings = compare(before, take_census(model)).findings
    return [str(finding) for finding in findings if finding.kind != "changed"]


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_is_lost(name: str):
    assert LOSSES[name]() is None


def test_stock_loses_each_of_these(stock_tree: Path):
    lost = run_on_stock(stock_tree, what_is_lost)

    assert [name for name in LOSSES if lost[name] is None] == []


@pytest.mark.parametrize("start", [OLD, None], ids=["checkpoint", "dummy"])
def test_any_order_in_any_calls_ends_as_a_cold_start(start: Weights | None):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = _model(start)
    before = take_census(model)
    for _ in range(25):
        weights = make_weights(rng.randrange(2**32), layers=3)
        order = rng.sample(weights, len(weights))
        cuts = sorted(rng.sample(range(len(order)), rng.randrange(6)))
        bounds = zip([0, *cuts], [*cuts, None], strict=True)

        reload(model, *(order[first:last] for first, last in bounds))

        fresh = take_census(_model(order))
        assert not compare_models(take_census(model), fresh).findings
    assert _moved(before, model) == []


def test_abort_puts_the_kernel_tensors_back():
    model = _model()
    before, loader = take_census(model), model.get_parameter("0.weight").weight_loader
    start_reload(model, "layerwise")
    # One layer complete, one begun, one that nothing reached.
    model.load_weights([*NEW[:6], *NEW[6:8]])

    abort_reload(model)

    assert _moved(before, model) == []
    assert model.get_parameter("0.weight").weight_loader == loader
    untouched = {
        name: kept
        for name, kept in contents(_model()).items()
        if not name.startswith("0.")
    }
    assert {name: contents(model)[name] for name in untouched} == untouched


def test_abort_without_a_start_does_nothing():
    model = _model()
    before = take_census(model)

    abort_layerwise_reload(model)

    assert not compare(before, take_census(model)).findings


def test_a_start_that_is_refused_does_not_abort_the_reload_under_way():
    model = _model()
    initialize_layerwise_reload(model)

    with pytest.raises(RuntimeError, match="neither finished nor aborted"):
        start_reload(model, "layerwise")

    model.load_weights(NEW)
    finalize_layerwise_processing(model, CONFIG)
    assert contents(model) == contents(_model(NEW))


def test_only_layers_that_were_written_to_are_undefined_after_a_failure():
    model = _model()
    with pytest.raises(RuntimeError, match=r"2 misses scale\[shard_id=1\], limit"):
        reload(model, [*NEW[:6], *NEW[12:15]])

    assert undefined_layers(model) == {"0"}
    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)


def test_layers_are_undefined_from_the_copy_until_the_end():
    model = _model()
    start_reload(model, "layerwise")
    assert undefined_layers(model) == set()
    model.load_weights(NEW)
    assert undefined_layers(model) == {"0", "1", "2"}

    finish_reload(model, CONFIG)

    require_defined(model)


@pytest.mark.parametrize("start", [OLD, None], ids=["checkpoint", "dummy"])
def test_an_undefined_layer_needs_all_of_its_tensors(start: Weights | None):
    model = _model(start)
    start_reload(model, "layerwise")
    model.load_weights(NEW[:6])
    abort_reload(model)

    with pytest.raises(RuntimeError, match="0, undefined since a failed reload"):
        reload(model, NEW[6:])
    reload(model, NEW)

    require_defined(model)
    assert contents(model) == contents(_model(NEW))


def test_the_other_mode_ends_what_this_one_left_undefined():
    model = _model()
    start_reload(model, "layerwise")
    model.load_weights(NEW[:6])
    abort_reload(model)

    start_reload(model, "direct")
    model.load_weights(NEW)
    finish_reload(model, CONFIG)

    require_defined(model)
    assert contents(model) == contents(_model(NEW))


def test_this_mode_ends_what_the_other_one_left_undefined():
    model = _model()
    start_reload(model, "direct")
    model.load_weights(NEW[:8])
    abort_reload(model)
    assert undefined_layers(model)

    reload(model, NEW)

    require_defined(model)
    assert contents(model) == contents(_model(NEW))


def test_what_is_buffered_is_a_copy():
    model = _model()
    initialize_layerwise_reload(model)
    handed = {tensor.untyped_storage().data_ptr() for _, tensor in NEW}

    model.load_weights(NEW[:5])

    kept = [
        value
        for layer in model.modules()
        for _, arguments in get_layerwise_info(layer).loaded_weights
        for value in arguments.arguments.values()
        if isinstance(value, torch.Tensor) and not value.is_meta
    ]
    abort_layerwise_reload(model)
    assert len(kept) == 5
    assert handed.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in kept)


def test_tied_parameters_may_come_under_either_name():
    weight = torch.zeros(Embedding().weight.shape)
    names = ("embed_tokens.weight", "lm_head.weight")
    for sent in (names, names[:1], names[1:]):
        model = cold_start(TiedModel(), [(name, weight) for name in names])
        model.lm_head.weight = model.embed_tokens.weight

        reload(model, [(name, weight + 1) for name in sent])

        assert torch.equal(model.lm_head.weight, weight + 1), sent
        assert model.lm_head.weight is model.embed_tokens.weight


def test_an_undefined_tied_layer_comes_under_the_other_name():
    weight = torch.zeros(Embedding().weight.shape)
    names = ("embed_tokens.weight", "lm_head.weight")
    model = cold_start(TiedModel(), [(name, weight) for name in names])
    model.lm_head.weight = model.embed_tokens.weight
    with pytest.raises(RuntimeError, match="are tied"):
        reload(model, [(names[0], weight + 1), (names[1], weight + 2)])

    reload(model, [(names[0], weight + 3)])

    require_defined(model)
    assert torch.equal(model.lm_head.weight, weight + 3)


def test_a_parameter_that_processing_dropped_stays_dropped():
    model = _model()
    model.get_submodule("0").scale = None
    before = take_census(model)

    reload(model, NEW[6:])

    assert model.get_submodule("0").scale is None
    assert _moved(before, model) == []


def test_a_bias_is_written_when_its_layer_is_complete():
    layer = ToyLayer(Folded())
    layer._add("bias", torch.zeros(SHARDS * ROWS), layer.load)
    old = [*OLD[:6], *_bias(1.0)]
    model = cold_start(ToyModel(layer), old)
    bias, address = layer.bias, layer.bias.data_ptr()
    initialize_layerwise_reload(model)
    model.load_weights(_bias(2.0))
    assert torch.equal(bias, torch.ones_like(bias))

    model.load_weights(NEW[:6])
    finalize_layerwise_processing(model, CONFIG)

    assert layer.bias is bias and bias.data_ptr() == address
    assert torch.equal(bias, torch.full_like(bias, 2.0))


def _bias(value: float) -> Weights:
    return [(f"0.bias.{shard}", torch.full((ROWS,), value)) for shard in range(SHARDS)]


def test_a_parameter_that_wraps_others_is_written_in_place():
    model = cold_start(ToyModel(ToyLayer(Wrapped())), OLD[:6])
    weight = model.get_parameter("0.weight")
    inner = weight.data.a

    reload(model, NEW[:6])

    expected = torch.cat([tensor for _, tensor in NEW[:2]])
    assert model.get_parameter("0.weight") is weight
    assert weight.data.a.data_ptr() == inner.data_ptr()
    assert torch.equal(inner, expected)
    assert torch.equal(weight.data.b, expected * 2)


def test_layers_that_quantize_online_load_and_reload():
    def start(weights: Weights) -> ToyModel:
        model = ToyModel(OnlineLayer())
        record_metadata_for_reloading(model)
        observe_first_load(model)
        model.load_weights(weights)
        finalize_layerwise_processing(model, CONFIG)
        end_first_load(model)
        return model

    old, new = OLD[:2], NEW[:2]
    model = start(old)
    before = take_census(model)
    assert model.get_parameter("0.weight").dtype == torch.int8
    for weights in (new, new[::-1], old):
        reload(model, *([item] for item in weights))
        assert contents(model) == contents(start(weights))
    assert _moved(before, model) == []
    with pytest.raises(RuntimeError, match=r"0 misses weight\[shard_id=1\]"):
        reload(model, new[:1])
    assert contents(model) == contents(start(old))
