# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What load balancing moves of routed experts, and how input scales are paired."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    load,
    loaded_parameters,
    process,
    quantization_process,
)
from tests.quantization.keep_param_moe_layers import NUM_EXPERTS
from tests.stock_vllm import run_on_stock

NAMES = ["moe-ct-nvfp4", "moe-modelopt-nvfp4", "moe-modelopt-nvfp4-marlin"]
NAMES += ["moe-quark-nvfp4-marlin", "moe-gptq-marlin", "moe-fp8"]


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def _processed(name: str) -> Any:
    case = cases()[name]
    layer = case.build()
    load(layer, loaded_parameters(layer))
    process(layer, case)
    return layer


def moved(name: str) -> list[bytes]:
    """What load balancing moves of a processed layer, in order."""
    weights = _processed(name).get_expert_weights()
    return [weight.view(torch.uint8).numpy().tobytes() for weight in weights]


def moved_of_all() -> dict[str, list[bytes]]:
    """`moved` for every layer."""
    with quantization_process():
        return {name: moved(name) for name in NAMES}


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[str, list[bytes]]:
    """What load balancing moves of the same layers on upstream's release."""
    return run_on_stock(stock_tree, moved_of_all)


@pytest.mark.parametrize("name", NAMES)
def test_what_stock_moves_is_moved_once(name: str, stock: dict[str, list[bytes]]):
    ours = moved(name)

    for weight in stock[name]:
        ours.remove(weight)
    assert not set(ours) & set(stock[name])


def test_rows_of_retired_parameters_move_with_their_experts():
    layer = _processed("moe-quark-int8-channel")
    weights = layer.get_expert_weights()

    addresses = {weight.data_ptr() for weight in weights}
    assert layer.w13_weight_zero_point.data_ptr() in addresses
    assert all(len(weight) == NUM_EXPERTS for weight in weights)


def test_a_retired_parameter_without_a_row_for_each_expert_stays():
    from vllm.model_executor.utils import retire_parameter  # Stock has none.

    layer = _processed("moe-fp8")
    layer.register_parameter("odd", torch.nn.Parameter(torch.ones(NUM_EXPERTS + 1)))
    retire_parameter(layer, "odd")

    addresses = {weight.data_ptr() for weight in layer.get_expert_weights()}

    assert layer.odd.data_ptr() not in addresses


def _load_input_scale(layer: Any, shard: str, scale: float) -> None:
    param = layer.w13_input_scale
    param.weight_loader(param, torch.tensor(scale), "w13_input_scale", shard, 0)


@pytest.mark.parametrize("order", [("w1", "w3"), ("w3", "w1")])
def test_input_scales_of_gate_and_up_must_be_equal(order: tuple[str, str]):
    layer = cases()["moe-ct-fp8"].build()
    _load_input_scale(layer, order[0], 0.5)

    with pytest.raises(ValueError, match="input_scales of w1 and w3"):
        _load_input_scale(layer, order[1], 0.25)


def test_other_input_scales_can_be_loaded_later():
    layer = cases()["moe-ct-fp8"].build()
    for scale in (0.5, 0.25):
        _load_input_scale(layer, "w1", scale)
        _load_input_scale(layer, "w3", scale)

    assert layer.w13_input_scale[0] == 0.25
