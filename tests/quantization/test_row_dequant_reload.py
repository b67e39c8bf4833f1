# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that unpack their checkpoint in place are reloaded in place, in both modes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    FORMATS,
    SHARDS,
    Item,
    Model,
    bf16,
    compressed,
    fp8,
    fused,
    layers_context,
    load,
    load_and_process,
    make_fused,
    make_layer,
    make_model,
    mxfp4,
    nvfp4,
    process,
    random_weight,
    reload_in_mode,
    same_bytes,
)
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

every_mode = pytest.mark.parametrize("mode", ["direct", "layerwise"])
every_failed_mode = pytest.mark.parametrize("failed", ["direct", "layerwise"])


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@every_mode
@pytest.mark.parametrize("first", FORMATS)
def test_reload_equals_a_cold_start(first: str, mode: Any):
    model = make_model(make_fused(), fused(FORMATS[first]).items)
    names = dict(model.layer.named_parameters())
    addresses = {name: param.data_ptr() for name, param in names.items()}

    others = ((compressed, nvfp4), (mxfp4, bf16), (fp8, mxfp4))
    for seed, second in enumerate((*FORMATS.values(), *others)):
        stored = fused(second, seed=seed + 7)
        reload_in_mode(model, reversed(stored.items), mode)

        cold = make_fused()
        load_and_process(cold, stored.items)
        assert same_bytes(model.layer.weight, stored.weight)
        for name, param in model.layer.named_parameters():
            assert param is names[name]
            assert param.data_ptr() == addresses[name]
            assert same_bytes(param, getattr(cold, name))


@every_mode
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("form", [bf16, fp8, nvfp4])
def test_shard_that_is_left_out_is_kept(form: Any, shard: int, mode: Any):
    old, new = fused((fp8, nvfp4)), fused((form, form), seed=7)
    model = make_model(make_fused(), old.items)

    reload_in_mode(model, [item for item in new.items if item.shard == shard], mode)

    first = new if shard == 0 else old
    second = new if shard == 1 else old
    rows = SHARDS[0]
    expected = torch.cat((first.weight[:rows], second.weight[rows:]))
    assert same_bytes(model.layer.weight, expected)


@every_mode
def test_reload_of_nothing_keeps_all(mode: Any):
    stored = fused((fp8, nvfp4))
    model = make_model(make_fused(), stored.items)

    reload_in_mode(model, [], mode)

    assert same_bytes(model.layer.weight, stored.weight)


@every_mode
def test_reload_of_the_bias_alone_keeps_the_weight(mode: Any):
    stored = fp8(random_weight(200))
    bias = Item("bias", torch.ones(200).bfloat16())
    layer = make_layer("ReplicatedLinear", COLS, 200, bias=True)
    model = make_model(layer, [*stored.items, bias])

    reload_in_mode(model, [Item("bias", torch.full((200,), 2.0).bfloat16())], mode)

    assert same_bytes(model.layer.weight, stored.weight)
    assert model.layer.bias.eq(2).all()


def test_modes_may_take_turns():
    model = make_model(make_fused(), fused((fp8, nvfp4)).items)
    modes: list[Any] = ["layerwise", "direct"] * 2

    for seed, mode in enumerate(modes):
        stored = fused((nvfp4, fp8), seed=seed)
        reload_in_mode(model, stored.items, mode)
        assert same_bytes(model.layer.weight, stored.weight)


@every_mode
@pytest.mark.parametrize("form", [fp8, nvfp4])
def test_a_scale_that_does_not_come_is_named_and_a_complete_reload_mends_it(
    form: Any, mode: Any
):
    from vllm.model_executor.model_loader.reload import (
        abort_reload,
        finish_reload,
        require_defined,
        start_reload,
    )

    new = fused((form, form), seed=7)
    model = make_model(make_fused(), fused((form, form)).items)
    weight, address = model.layer.weight, model.layer.weight.data_ptr()
    config: Any = SimpleNamespace(dtype=torch.bfloat16)
    start_reload(model, mode)
    load(model.layer, [item for item in new.items if item.name == "weight"])

    with pytest.raises(RuntimeError, match=r"proj\.weight, shard 0: .*weight_scale"):
        finish_reload(model, config)

    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    for stored in (fused((bf16, bf16), seed=8), new):
        reload_in_mode(model, stored.items, mode)
        require_defined(model)
        assert same_bytes(model.layer.weight, stored.weight)
    abort_reload(model)
    assert model.layer.weight is weight
    assert model.layer.weight.data_ptr() == address


@every_mode
@pytest.mark.parametrize("form", [fp8, nvfp4])
@pytest.mark.parametrize("weight", ["absent", "bf16"])
def test_scale_without_packed_rows_is_refused_and_changes_nothing(
    weight: str, form: Any, mode: Any
):
    stored = fused((form, form))
    model = make_model(make_fused(), stored.items)
    scales = [i for i in fused((form, form), seed=7).items if i.name != "weight"]
    sent = [Item("weight", stored.weight[SHARDS[0] :], 1)] if weight == "bf16" else []

    with pytest.raises(RuntimeError, match="no packed weight for its weight_scale"):
        reload_in_mode(model, [*sent, *(i for i in scales if i.shard == 1)], mode)

    assert same_bytes(model.layer.weight, stored.weight)


def _abort(model: Any, items: list[Item], mode: Any) -> None:
    from vllm.model_executor.model_loader.reload import abort_reload, start_reload

    start_reload(model, mode)
    load(model.layer, items)
    abort_reload(model)


@every_mode
@every_failed_mode
def test_layer_of_a_failed_reload_must_come_again(mode: Any, failed: Any):
    other = make_layer("ReplicatedLinear", COLS, 64)
    model = make_model(make_fused(), fused((fp8, fp8)).items)
    model.other = other
    load_and_process(other, bf16(random_weight(64)).items)
    _abort(model, fused((fp8, fp8), seed=7).items[:1], failed)

    with pytest.raises(RuntimeError, match=r"layer: .*rows that hold nothing"):
        reload_in_mode(model, [], mode)
    stored = fused((nvfp4, bf16), seed=8)
    reload_in_mode(model, stored.items, mode)

    assert same_bytes(model.layer.weight, stored.weight)


@every_mode
@every_failed_mode
def test_bias_of_a_failed_reload_must_come_again(mode: Any, failed: Any):
    from vllm.model_executor.model_loader.reload.first_load import (
        end_first_load,
        observe_first_load,
    )

    layer = make_layer("ReplicatedLinear", COLS, 200, bias=True)
    bias = Item("bias", torch.ones(200).bfloat16())
    model: Any = Model(layer)
    record_metadata_for_reloading(model)
    observe_first_load(model)
    load(layer, [*fp8(random_weight(200)).items, bias])
    end_first_load(model)
    process(layer)
    _abort(model, [Item("bias", torch.full((200,), 9).bfloat16())], failed)

    again = fp8(random_weight(200, seed=3)).items
    with pytest.raises(RuntimeError, match="undefined since a failed reload, .*bias"):
        reload_in_mode(model, again, mode)
    reload_in_mode(model, [*again, bias], mode)

    assert same_bytes(layer.bias, bias.tensor)


@every_mode
def test_scale_of_a_tensor_that_failed_is_not_used(mode: Any):
    from vllm.model_executor.model_loader.reload import abort_reload, start_reload

    layer = make_layer("MergedColumnParallelLinear", COLS, [128, 64], disable_tp=True)
    parts = [fp8(random_weight(rows, seed=rows), i) for i, rows in enumerate((128, 64))]
    model = make_model(layer, [item for part in parts for item in part.items])
    scale = torch.cat([part.items[1].tensor for part in parts])
    scale[-1] = torch.nan  # Of the second shard: the first is written by then.

    start_reload(model, mode)
    with pytest.raises(ValueError, match="NaN"):
        load(layer, [Item("weight_scale_inv", scale)])
    abort_reload(model)

    weights = [part.items[0] for part in parts]
    with pytest.raises(RuntimeError, match="shard 0: found a torch.float8_e4m3fn weig"):
        reload_in_mode(model, [*weights, parts[1].items[1]], mode)
