# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Rows that checkpoints lack, and errors that give a tensor's name."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.quantization.dequant_layers import (
    Model,
    bf16,
    fp8,
    fused,
    layers_context,
    make_fused,
    process,
    same_bytes,
)
from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    CheckpointTensorError,
    MissingRows,
    RowDequantLoader,
    find_parameter,
    named_in_errors,
)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint8], ids=str
)
def test_missing_rows_of_a_weight_are_zero(dtype: torch.dtype):
    weight = torch.ones(192, 8).to(dtype)

    padded = MissingRows(192, 32).add_to("weight", weight)

    assert (padded.shape, padded.dtype) == ((224, 8), dtype)
    assert torch.equal(padded[:192].float(), weight.float())
    assert not padded[192:].float().any()


@pytest.mark.parametrize(
    ("present", "missing", "rows", "expected"),
    [(512, 64, 4, 5), (448, 64, 4, 4), (192, 32, 2, 2), (128, 64, 1, 2)],
)
@pytest.mark.parametrize("ends", [(3,), (1, 3, 1)])
def test_missing_rows_may_need_another_row_of_blocks(
    present: int, missing: int, rows: int, expected: int, ends: tuple[int, ...]
):
    scale = torch.full((rows, *ends), 2.0)

    padded = MissingRows(present, missing).add_to("weight_scale_inv", scale)

    assert padded.shape == (expected, *ends)
    assert torch.equal(padded[:rows], scale)
    assert bool((padded[rows:] == 1).all())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float8_e4m3fn, torch.float8_e8m0fnu], ids=str
)
def test_missing_rows_have_group_scales_of_one(dtype: torch.dtype):
    scale = torch.full((192, 4), 2.0).to(dtype)

    padded = MissingRows(192, 32).add_to("weight_scale", scale)

    assert padded.shape == (224, 4)
    assert bool((padded[192:].float() == 1).all())


def test_missing_rows_have_bytes_of_e8m0_scales_of_one():
    padded = MissingRows(192, 32).add_to(
        "weight_scale", torch.full((192, 4), 130, dtype=torch.uint8)
    )

    assert bool((padded[192:].view(torch.float8_e8m0fnu).float() == 1).all())


@pytest.mark.parametrize("shape", [(224, 8), (100, 8), (1,), ()])
def test_tensor_with_another_number_of_rows_is_left_alone(shape: tuple[int, ...]):
    tensor = torch.ones(shape)

    assert MissingRows(192, 32).add_to("weight", tensor) is tensor


def test_exact_name_of_the_outer_loader_replaces_that_of_the_inner():
    weights = [("first", torch.ones(1)), ("outer.name", torch.ones(1))]

    with (
        pytest.raises(
            CheckpointTensorError, match="^checkpoint tensor outer.name: why$"
        ),
        named_in_errors(weights) as named,
    ):
        for name, _ in named:
            if name != "first":
                raise CheckpointTensorError("inner.name", "why")


def test_error_after_the_last_tensor_is_about_none():
    with (
        pytest.raises(ValueError, match="^all of it$"),
        named_in_errors([("name", torch.ones(1))]) as named,
    ):
        list(named)
        raise ValueError("all of it")


def test_scale_in_e8m0_may_be_loaded_into_float32():
    params = {"scale": torch.ones(1)}
    scale = torch.ones(1).to(torch.float8_e8m0fnu)

    assert find_parameter(params, "scale", scale, "x.scale") is params["scale"]


def test_tensor_without_a_parameter_is_refused():
    with pytest.raises(CheckpointTensorError, match="x.scale: .*does not have"):
        find_parameter({}, "scale", torch.ones(1), "x.scale")


SHARDS = {"layer": ("first", "second")}


@pytest.fixture
def layers() -> Iterator[None]:
    with layers_context():
        yield


@pytest.mark.usefixtures("layers")
def test_tensor_that_a_mapper_has_renamed_goes_to_the_shard_it_names():
    model: Any = Model(make_fused())
    stored = fused((fp8, bf16))
    loader, loaded = RowDequantLoader(model, SHARDS), set[str]()

    for name, tensor, shard in stored.items:
        tensor.shard_id = shard  # type: ignore[attr-defined]
        assert loader.load(f"layer.{name}", tensor, name, loaded)
    process(model.layer)

    assert same_bytes(model.layer.weight, stored.weight)


@pytest.mark.usefixtures("layers")
def test_tensor_that_is_fused_on_disk_is_loaded():
    model: Any = Model(make_fused())
    loader, loaded = RowDequantLoader(model, SHARDS), set[str]()

    assert loader.load("layer.weight", torch.ones(768, 320), "x", loaded)

    assert "layer.weight" in loaded
    assert torch.equal(model.layer.weight, torch.ones(768, 320).bfloat16())


@pytest.mark.usefixtures("layers")
def test_layer_without_a_quantization_takes_unquantized_tensors_alone():
    loader = RowDequantLoader(Model(make_fused(quant_config=None)), SHARDS)
    (weight, scale), loaded = fp8(torch.ones(192, 320)).items, set[str]()

    assert not loader.load("first.weight", torch.ones(192, 320), "x", loaded)
    with pytest.raises(CheckpointTensorError, match="x: .*float8.*layer.weight; exp"):
        loader.load("first.weight", weight.tensor, "x", loaded)
    with pytest.raises(CheckpointTensorError, match="layer.weight_scale_inv, which"):
        loader.load("first.weight_scale_inv", scale.tensor, "x", loaded)
    assert loaded == set()
