# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Humming keeps loaded parameters, and converts again what is loaded again.

Its schemas convert as they do on a GPU; the operators of its kernels are stand-ins.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.quantization.humming_cases import linear_cases, moe_cases
from tests.quantization.keep_param_checks import (
    Loaded,
    Outcome,
    assert_same_outcome,
    differing_values,
    load,
    load_whole,
    loaded_parameters,
    outcome,
    process,
    quantization_process,
    restore_model_format,
)
from tests.quantization.keep_param_layers import Case
from tests.stock_vllm import run_on_stock
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    record_metadata_for_reloading,
)

pytest.importorskip("humming", reason="needs the package humming-kernels")


def _cases() -> dict[str, Case]:
    experts = {f"moe-{name}": case for name, case in moe_cases().items()}
    return linear_cases() | experts


NAMES = list(_cases())


def _loadable(layer: torch.nn.Module) -> dict[str, Loaded]:
    """Without the placeholder of a weight that other formats have under this name."""
    loaded = loaded_parameters(layer)
    return {name: entry for name, entry in loaded.items() if entry.shape}


def _load(layer: torch.nn.Module, names: dict[str, Loaded]) -> None:
    experts = any(name.startswith("w13_") for name in names)
    (load_whole if experts else load)(layer, names)


def _built(name: str) -> tuple[Case, torch.nn.Module, dict[str, Loaded]]:
    case = _cases()[name]
    layer = case.build()
    return case, layer, _loadable(layer)


def _processed(name: str) -> tuple[Case, torch.nn.Module, dict[str, Loaded]]:
    case, layer, loaded = _built(name)
    _load(layer, loaded)
    process(layer, case)
    return case, layer, loaded


def _run(name: str) -> Outcome:
    _, layer, loaded = _processed(name)
    return outcome(layer, loaded)


def run_all() -> dict[str, Outcome]:
    """Every case; for a process in which no other test runs."""
    with quantization_process():
        return {name: _run(name) for name in NAMES}


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[str, Outcome]:
    """What upstream's release makes of the same layers."""
    return run_on_stock(stock_tree, run_all)


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_loaded_parameters_survive(name: str):
    assert _run(name).losses == []


@pytest.mark.parametrize("name", NAMES)
def test_kernels_see_what_they_see_on_stock(name: str, stock: dict[str, Outcome]):
    ours = _run(name)

    assert ours.live == stock[name].live
    assert differing_values(ours.values, stock[name].values) == []


def test_stock_loses_loaded_parameters(stock: dict[str, Outcome]):
    assert [name for name, outcome in stock.items() if not outcome.losses] == []


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_bytes_in_the_same_objects_give_the_same_again(name: str):
    case, layer, loaded = _processed(name)
    first = outcome(layer, loaded)

    restore_model_format(loaded)
    # What a reload clears before it processes a layer again.
    layer._already_called_process_weights_after_loading = False
    _load(layer, loaded)
    process(layer, case)

    assert_same_outcome(outcome(layer, loaded), first)


@pytest.mark.parametrize("name", NAMES)
def test_two_layerwise_reloads_give_the_same_in_the_same_objects(name: str):
    # Not on stock, where the module is imported too.
    from vllm.model_executor.model_loader.reload.first_load import (
        end_first_load,
        observe_first_load,
    )

    case, layer, loaded = _built(name)
    record_metadata_for_reloading(layer)
    observe_first_load(layer)
    _load(layer, loaded)
    end_first_load(layer)
    process(layer, case)
    first = outcome(layer, loaded)

    for _ in range(2):
        with case.processing():
            initialize_layerwise_reload(layer)
            _load(layer, loaded)
            finalize_layerwise_reload(layer, SimpleNamespace(dtype=torch.bfloat16))

        assert_same_outcome(outcome(layer, loaded), first)


def _load_unquantized(layer: torch.nn.Module) -> torch.Tensor:
    """Loads a plain weight, as a model does: by parameters looked up once."""
    weight = torch.rand(256, 256).to(torch.bfloat16)
    params: Any = dict(layer.named_parameters())
    for shard, part in enumerate(weight.chunk(2)):
        params["weight"].weight_loader(params["weight"], part, shard)
    return weight


def test_a_layer_that_the_checkpoint_does_not_quantize_is_not_reloaded_in_part():
    """Its loader registers another weight; a reload cannot tell what is complete."""
    from vllm.model_executor.model_loader.reload.first_load import (
        end_first_load,
        observe_first_load,
    )
    from vllm.model_executor.model_loader.reload.layerwise import (
        abort_layerwise_reload,
    )

    _, layer, _ = _built("method-ct-int4")
    record_metadata_for_reloading(layer)
    observe_first_load(layer)
    first = _load_unquantized(layer)
    end_first_load(layer)
    param = layer.weight
    assert torch.equal(param, first)

    with mock.patch.object(
        UnquantizedLinearMethod, "process_weights_after_loading", lambda *args: None
    ):
        initialize_layerwise_reload(layer)
        with pytest.raises(RuntimeError, match="weight arrived after all tensors"):
            _load_unquantized(layer)
        abort_layerwise_reload(layer)

    assert layer.weight is param
