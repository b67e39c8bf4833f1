# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What layers that unpack their checkpoint in place do, whatever the format."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
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

PACKED = {"fp8": fp8, "nvfp4": nvfp4}
every_kind = pytest.mark.parametrize("kind", PACKED)


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@every_kind
def test_chunks_do_not_change_the_weight(kind: str, monkeypatch: pytest.MonkeyPatch):
    from vllm.model_executor.layers.quantization.utils import row_dequant_tables

    layer, stored = make_fused(kind), fused((PACKED[kind], PACKED[kind]))
    monkeypatch.setattr(row_dequant_tables, "CHUNK_VALUES", 50 * COLS)

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


@every_kind
def test_projection_is_that_of_the_weight(kind: str):
    layer = make_layer("ReplicatedLinear", kind, COLS, 200)
    stored = PACKED[kind](random_weight(200))
    x = random_weight(3).bfloat16()

    load_and_process(layer, stored.items)

    expected = torch.nn.functional.linear(x, stored.weight)
    assert same_bytes(layer(x)[0], expected)


@every_kind
def test_second_processing_changes_nothing(kind: str):
    layer, stored = make_fused(kind), fused((PACKED[kind], bf16))
    load_and_process(layer, stored.items)

    process(layer)

    assert same_bytes(layer.weight, stored.weight)


@every_kind
def test_dummy_weights_are_finite_and_not_all_zero(kind: str):
    model = Model(make_fused(kind))

    load_dummy_weights(model)
    process(model.layer)

    assert model.layer.weight.isfinite().all()
    assert model.layer.weight.abs().sum() > 0


@every_kind
def test_sharded_state_is_loaded_as_it_was_saved(kind: str, tmp_path: Path):
    saved, stored = Model(make_fused(kind)), fused((PACKED[kind], bf16))
    load_and_process(saved.layer, stored.items)
    model = Model(make_fused(kind))
    address = model.layer.weight.data_ptr()

    save_and_load_sharded_state(saved, model, tmp_path)
    process(model.layer)

    assert same_bytes(model.layer.weight, stored.weight)
    assert model.layer.weight.data_ptr() == address


@every_kind
@pytest.mark.parametrize("copy", ["clone", "to"])
def test_packed_weight_survives_the_loss_of_its_layout(kind: str, copy: str):
    layer, stored = make_fused(kind), fused((PACKED[kind], PACKED[kind]))
    load(layer, stored.items)

    data = layer.weight.data
    layer.weight.data = data.clone() if copy == "clone" else data.to("cpu", copy=True)
    process(layer)

    assert same_bytes(layer.weight, stored.weight)
