# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""GLM-5.2's indexer runs its low-latency GEMM whatever its checkpoint stores."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    SHARDS,
    Model,
    fp8,
    fused,
    layers_context,
    load_and_process,
    make_fused,
    make_layer,
    same_bytes,
)

ROWS = sum(SHARDS)


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


def _enable(layer: torch.nn.Module, rows: int = ROWS) -> Any:
    """Offers a model a plan for [rows, cols]; gives the module that has it."""
    from vllm.models.deepseek_v32.nvidia import glm52_low_latency_gemm as gemm

    spec = gemm.GLM52ProjectionSpec(n=rows, k=COLS, cute_configs=())
    table = {(rows, COLS): spec}
    with mock.patch.object(gemm, "_low_latency_table", lambda: table):
        gemm.enable_glm52_low_latency_gemm(Model(layer), torch.bfloat16)
    return gemm


def test_quantized_layer_runs_the_plan_and_loads_as_before():
    layer, stored = make_fused(), fused((fp8, fp8))
    loading = layer.quant_method

    gemm = _enable(layer)
    load_and_process(layer, stored.items)

    assert layer.quant_method is loading
    assert same_bytes(layer.weight, stored.weight)
    x, planned = torch.ones(2, COLS).bfloat16(), torch.ones(2, ROWS)
    with mock.patch.object(gemm, "run_glm52_plan", return_value=planned) as run:
        assert layer(x)[0] is planned
    assert run.call_args.args[2] is layer.weight


def test_quantized_layer_falls_back_to_its_projection():
    layer, stored = make_fused(), fused((fp8, fp8))

    _enable(layer)
    load_and_process(layer, stored.items)

    x = torch.ones(2, COLS).bfloat16()
    expected = torch.nn.functional.linear(x, stored.weight)
    assert same_bytes(layer(x)[0], expected)


def test_unquantized_layer_gets_the_method_itself():
    layer = make_layer("ReplicatedLinear", COLS, 64, quant_config=None)

    gemm = _enable(layer, 64)

    assert type(layer.quant_method) is gemm.GLM52LowLatencyLinearMethod


def test_layer_of_another_shape_gets_none():
    layer = make_fused()

    _enable(layer, ROWS + 1)

    assert layer.quant_method.runner is None
