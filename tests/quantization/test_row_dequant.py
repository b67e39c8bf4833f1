# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What layers that unpack their checkpoint in place do, whatever the format."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    FORMATS,
    SHARDS,
    Format,
    Model,
    bf16,
    fp8,
    fused,
    layers_context,
    load,
    load_and_process,
    load_dummy_weights,
    make_fused,
    make_layer,
    nvfp4,
    process,
    random_weight,
    same_bytes,
    save_and_load_sharded_state,
)

ROWS = sum(SHARDS)
every_packed = pytest.mark.parametrize("form", [fp8, nvfp4])


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("reverse", [False, True])
def test_each_shard_may_have_its_own_format(name: str, reverse: bool):
    layer, stored = make_fused(), fused(FORMATS[name])
    weight, address = layer.weight, layer.weight.data_ptr()

    load_and_process(layer, reversed(stored.items) if reverse else stored.items)

    assert layer.weight is weight
    assert layer.weight.data_ptr() == address
    assert same_bytes(layer.weight, stored.weight)


def test_layer_takes_the_memory_of_its_weight_and_of_scales():
    layer = make_fused()

    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.shape == (ROWS, COLS)
    weight, *scales = (param.untyped_storage().nbytes() for param in layer.parameters())
    assert weight == 2 * ROWS * COLS
    assert sum(scales) < weight / 32 + 8 * ROWS


@every_packed
def test_chunks_do_not_change_the_weight(form: Format, monkeypatch: pytest.MonkeyPatch):
    from vllm.model_executor.layers.quantization.utils import row_dequant_tables

    layer, stored = make_fused(), fused((form, form))
    monkeypatch.setattr(row_dequant_tables, "CHUNK_VALUES", 50 * COLS)

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


@every_packed
def test_projection_is_that_of_the_weight(form: Format):
    layer, stored = make_layer("ReplicatedLinear", COLS, 200), form(random_weight(200))
    x = random_weight(3).bfloat16()

    load_and_process(layer, stored.items)

    expected = torch.nn.functional.linear(x, stored.weight)
    assert same_bytes(layer(x)[0], expected)


@pytest.mark.parametrize("name", FORMATS)
def test_second_processing_changes_nothing(name: str):
    layer, stored = make_fused(), fused(FORMATS[name])
    load_and_process(layer, stored.items)

    process(layer)

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("name", FORMATS)
def test_processed_layer_is_loaded_again(name: str):
    layer, stored = make_fused(), fused(FORMATS[name], seed=7)
    load_and_process(layer, fused((fp8, nvfp4)).items)

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


def test_later_tensor_replaces_one_of_another_format():
    layer, stored = make_layer("ReplicatedLinear", COLS, 200), nvfp4(random_weight(200))
    load(layer, [fp8(random_weight(200)).items[0]])

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


def test_scales_are_retired_and_empty():
    from vllm.model_executor.utils import get_live_param

    layer = make_fused()

    load_and_process(layer, fused((fp8, nvfp4)).items)

    for name in layer.quant_method.scales:
        assert get_live_param(layer, name) is None
        assert getattr(layer, name).float().isnan().all()


def test_dummy_weights_are_finite_and_not_all_zero():
    model = Model(make_fused())

    load_dummy_weights(model)
    process(model.layer)

    assert model.layer.weight.isfinite().all()
    assert model.layer.weight.abs().sum() > 0


@pytest.mark.parametrize("name", FORMATS)
def test_sharded_state_is_loaded_as_it_was_saved(name: str, tmp_path: Path):
    saved, stored = Model(make_fused()), fused(FORMATS[name])
    load_and_process(saved.layer, stored.items)
    model = Model(make_fused())
    address = model.layer.weight.data_ptr()

    save_and_load_sharded_state(saved, model, tmp_path)
    process(model.layer)

    assert same_bytes(model.layer.weight, stored.weight)
    assert model.layer.weight.data_ptr() == address


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("copy", ["clone", "to"])
def test_weight_may_be_moved_between_loading_and_processing(name: str, copy: str):
    layer, stored = make_fused(), fused(FORMATS[name])
    load(layer, stored.items)

    data = layer.weight.data
    layer.weight.data = data.clone() if copy == "clone" else data.to("cpu", copy=True)
    process(layer)

    assert same_bytes(layer.weight, stored.weight)


def test_pre_processed_weights_are_kept():
    from vllm.model_executor.model_loader.weight_cache.ipc_loader import (
        _materialize_remaining_meta_tensors,
    )
    from vllm.model_executor.model_loader.weight_cache.protocol import (
        check_ipc_quant_support,
    )
    from vllm.model_executor.utils import weights_already_processed

    with torch.device("meta"):
        layer = make_fused()
    check_ipc_quant_support(layer)
    cached = torch.nn.Parameter(fused((fp8, fp8)).weight, requires_grad=False)
    layer.register_parameter("weight", cached)

    with weights_already_processed():
        process(layer)
    _materialize_remaining_meta_tensors(layer, torch.device("cpu"))
    process(layer)

    assert layer.weight is cached
    assert same_bytes(layer.weight, fused((fp8, fp8)).weight)


def test_pre_processed_rows_are_kept():
    from vllm.model_executor.utils import weights_already_processed

    layer, stored = make_fused(), fused((bf16, bf16))
    layer.weight.data.copy_(stored.weight)

    with weights_already_processed():
        process(layer)
    process(layer)

    assert same_bytes(layer.weight, stored.weight)


E8M0 = torch.float8_e8m0fnu
NAMES = {
    "blocks": ("weight_scale", torch.ones(2, 3), "weight_scale_inv"),
    "four-dimensional blocks": (
        "weight_scale",
        torch.ones(2, 1, 3, 1),
        "weight_scale_inv",
    ),
    "blocks in e8m0": ("weight_scale", torch.ones(2, 3).to(E8M0), "weight_scale_inv"),
    "channels": ("weight_scale", torch.ones(200, 1), "weight_channel_scale"),
    "flat channels": ("weight_scale", torch.ones(200), "weight_channel_scale"),
    "whole tensor": ("weight_scale", torch.tensor(1.0), "weight_channel_scale"),
    "groups": (
        "weight_scale",
        torch.ones(200, 20).to(torch.float8_e4m3fn),
        "weight_scale",
    ),
    "groups in e8m0": ("weight_scale", torch.ones(200, 10).to(E8M0), "weight_scale"),
    "groups in bytes": (
        "weight_scale",
        torch.ones(200, 10, dtype=torch.uint8),
        "weight_scale",
    ),
    "packed": ("weight_packed", torch.ones(200, 160, dtype=torch.uint8), "weight"),
    "input": ("input_global_scale", torch.tensor(1.0), "input_scale"),
}


@pytest.mark.parametrize("case", NAMES)
def test_name_and_dtype_find_the_parameter(case: str):
    layer = make_layer("ReplicatedLinear", COLS, 200)
    name, tensor, parameter = NAMES[case]

    assert layer.quant_method.parameter_for(layer, name, tensor) == parameter


def test_block_scales_of_all_shards_at_once_are_told_from_groups():
    layer, scale = make_fused(), torch.ones(7, 3).to(E8M0)

    found = layer.quant_method.parameter_for(layer, "weight_scale", scale)

    assert found == "weight_scale_inv"


def test_own_names_find_their_parameter():
    layer = make_layer("ReplicatedLinear", COLS, 200)

    for name in ("weight", *(layer.quant_method.scales.keys() - {"weight_scale"})):
        found = layer.quant_method.parameter_for(layer, name, torch.tensor(1.0))
        assert found == name


def test_other_names_are_refused():
    layer = make_layer("ReplicatedLinear", COLS, 200)

    with pytest.raises(ValueError, match="found a checkpoint tensor 'k_scale'"):
        layer.quant_method.parameter_for(layer, "k_scale", torch.tensor(1.0))
