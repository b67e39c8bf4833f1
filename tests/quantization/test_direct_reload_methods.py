# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Direct reload of single layers with vLLM's quantization methods."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    load,
    loaded_parameters,
    outcome,
    process,
    quantization_process,
)
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.audit import compare, take_census
from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)

CONFIG: Any = SimpleNamespace(dtype=torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


@pytest.mark.parametrize("name", cases())
def test_three_direct_reloads_give_the_same_in_the_same_objects(name: str):
    case = cases()[name]
    layer = case.build()
    loaded = loaded_parameters(layer)
    # An attention layer's own post-load processing is not a model's hook.
    model = torch.nn.ModuleDict({"layer": layer})
    record_metadata_for_reloading(model)
    observe_first_load(model)
    load(layer, loaded)
    end_first_load(model)
    process(layer, case)
    first, before = outcome(layer, loaded), take_census(model)

    for _ in range(3):
        with case.processing():
            start_reload(model, "direct")
            load(layer, loaded)
            finish_reload(model, CONFIG)

        report = compare(before, take_census(model))
        assert report.ok, report.to_table()
        again = outcome(layer, loaded)
        assert again.losses == []
        assert again.live == first.live
        assert again.values == first.values
