# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Loaded parameters survive post-load processing, and kernels see what stock has."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    Outcome,
    assert_same_outcome,
    differing_values,
    load,
    loaded_parameters,
    outcome,
    process,
    quantization_process,
    restore_model_format,
    run,
    run_all,
)
from tests.quantization.keep_param_layers import INPUT_SIZE
from tests.stock_vllm import run_on_stock
from vllm.model_executor.kernels.linear.mixed_precision import marlin
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    record_metadata_for_reloading,
)
from vllm.model_executor.model_loader.reload.audit import compare, take_census

NAMES = list(cases())

IDEMPOTENT = [
    *(name for name in NAMES if name.startswith("kv-")),
    "ct-mxfp4",
    "inc-mxfp4",
    "modelopt-nvfp4",
    "modelopt-nvfp4-a16",
    "quark-nvfp4",
    "moe-ct-nvfp4",
    "moe-quark-int8-channel",
]
"""Cases in which all that is consumed is kept as it was loaded."""

HOLDING_MORE = {
    # Scales, biases and zero points of experts.
    "moe-awq-emulation",
    "moe-ct-w4a8-int8",
    "moe-ct-w4a8-int8-bias",
    "moe-ct-wna16-emulation",
    "moe-gptq-emulation",
    "moe-quark-int8-channel",
    *(name for name in NAMES if name.startswith("kv-")),
    *(name for name in NAMES if name.startswith("gptq-")),
    *(name for name in NAMES if name.startswith("inc-") and name != "inc-mxfp4"),
    *(name for name in NAMES if name.startswith("ct-w4a8-int-")),
    "ct-int8-zentorch",
    "ct-w8a16-channel-static",
    "fbgemm-marlin",
    "wNa8o8-int4",
}
"""Cases that hold over 0.1 % more than stock, each for a reason in the documents."""


@pytest.fixture(scope="session")
def stock(stock_tree: Path) -> dict[str, Outcome]:
    """What upstream's release makes of the same layers."""
    return run_on_stock(stock_tree, run_all)


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_loaded_parameters_survive(name: str):
    assert run(name).losses == []


@pytest.mark.parametrize("name", NAMES)
def test_kernels_see_what_they_see_on_stock(name: str, stock: dict[str, Outcome]):
    ours, renamed = run(name), cases()[name].renamed

    assert ours.live - renamed == stock[name].live - renamed
    assert set(differing_values(ours.values, stock[name].values)) <= renamed


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_bytes_in_the_same_objects_give_the_same_again(name: str):
    case = cases()[name]
    layer = case.build()
    loaded = loaded_parameters(layer)
    load(layer, loaded)
    process(layer, case)
    first, registered = outcome(layer, loaded), dict(layer._parameters)

    restore_model_format(loaded)
    load(layer, loaded)
    process(layer, case)

    assert_same_outcome(outcome(layer, loaded), first)
    anew = [n for n, p in registered.items() if layer._parameters[n] is not p]
    assert anew == []


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_processing_again_gives_the_same(name: str):
    case = cases()[name]
    layer = case.build()
    loaded = loaded_parameters(layer)
    load(layer, loaded)
    process(layer, case)
    first = outcome(layer, loaded)

    process(layer, case)

    assert_same_outcome(outcome(layer, loaded), first)


@pytest.mark.parametrize("name", NAMES)
def test_two_layerwise_reloads_give_the_same_in_the_same_objects(name: str):
    case = cases()[name]
    layer = case.build()
    loaded = loaded_parameters(layer)
    record_metadata_for_reloading(layer)
    load(layer, loaded)
    process(layer, case)
    first, before = outcome(layer, loaded), take_census(layer)

    for _ in range(2):
        with case.processing():
            initialize_layerwise_reload(layer)
            load(layer, loaded)
            finalize_layerwise_reload(layer, SimpleNamespace(dtype=torch.bfloat16))

        assert_same_outcome(outcome(layer, loaded), first)
        report = compare(before, take_census(layer))
        assert report.ok, report.to_table()


def test_no_other_layer_holds_a_thousandth_more_than_on_stock(
    stock: dict[str, Outcome],
):
    more = {n for n in NAMES if run(n).nbytes > 1.001 * stock[n].nbytes}

    assert more == HOLDING_MORE


def test_stock_loses_loaded_parameters(stock: dict[str, Outcome]):
    lossless = {name for name, outcome in stock.items() if not outcome.losses}

    assert lossless == {
        "ct-int8-cutlass-static",
        "ct-int8-cutlass-asymmetric",
        "ct-int8-triton-static",
        "ct-int8-triton-asymmetric",
        "ct-int8-triton-dynamic",
        "moe-awq-marlin",
        "moe-gptq-marlin",
        "moe-wna16",
        "moe-inc-ark",
        "moe-ct-wna16-marlin",
        # What the kernel reads is as large as what was loaded, or larger.
        "ct-cpu",
        "ct-cpu-asymmetric",
        "ct-cpu-w4a8",
        "ct-cpu-w4a8-asymmetric",
        "ct-w4a8-fp8-cutlass",
    }


def test_marlin_gets_an_empty_zero_point(monkeypatch: pytest.MonkeyPatch):
    case = cases()["gptq-marlin"]
    layer = case.build()
    load(layer, loaded_parameters(layer))
    process(layer, case)
    given: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(
        marlin, "apply_gptq_marlin_linear", lambda **arguments: given.update(arguments)
    )

    layer.quant_method.apply(layer, torch.ones(1, INPUT_SIZE))

    assert given["weight_zp"].numel() == 0


def test_copies_for_a_gathered_projection_are_refilled():
    case = cases()["modelopt-nvfp4-a16"]
    layer = case.build()
    layer._retain_weight_for_gather = True
    loaded = loaded_parameters(layer)
    names = [
        f"_nvfp4_{name}_for_gather"
        for name in ("weight", "weight_scale", "weight_global_scale")
    ]
    load(layer, loaded)
    process(layer, case)
    first = [getattr(layer, name) for name in names]
    expected = [tensor.clone() for tensor in first]
    for tensor in first:
        tensor.reshape(-1).view(torch.uint8).zero_()

    restore_model_format(loaded)
    load(layer, loaded)
    process(layer, case)

    again = [getattr(layer, name) for name in names]
    assert all(one is other for one, other in zip(again, first, strict=True))
    assert all(map(torch.equal, _bytes(again), _bytes(expected)))


def _bytes(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
