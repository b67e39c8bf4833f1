# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Loaded parameters in kernels that the table of cases does not reach."""

from collections.abc import Iterator

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
from tests.quantization.keep_param_layers import (
    CT,
    INPUT_SIZE,
    OUTPUT_SIZES,
    Case,
    int8_kernel,
    make_config,
    make_kernel,
    make_linear,
)
from vllm import _custom_ops as ops
from vllm.model_executor.utils import get_live_param

SCALES_PER_BLOCK = 32
"""Rows that share their scales in a layer of 32 x 32 blocks."""


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def test_triton_int8_does_not_read_a_loaded_scale_of_dynamic_activations():
    case = cases()["ct-int8-triton-dynamic"]
    layer = case.build()
    layer.input_scale = torch.nn.Parameter(torch.tensor([0.5]), requires_grad=False)
    scale = layer.input_scale
    load(layer, ["weight", "weight_scale"])

    process(layer, case)

    assert layer.input_scale is scale
    assert torch.equal(scale, torch.tensor([0.5]))
    assert get_live_param(layer, "input_scale") is None
    assert layer.scheme.kernel._get_layer_params(layer)[2] is None


def test_cpu_int8_merges_input_scales_in_their_storage(
    monkeypatch: pytest.MonkeyPatch,
):
    handler = object()
    monkeypatch.setattr(ops, "create_onednn_scaled_mm", lambda *arguments: handler)
    case = Case(
        lambda: make_linear(
            f"{CT}w8a8_int8",
            lambda m: m.CompressedTensorsW8A8Int8("tensor", True, False),
            "init_int8_linear_kernel",
            int8_kernel("CPU", True, False),
        )
    )
    layer = case.build()
    loaded = loaded_parameters(layer)
    load(layer, loaded)

    process(layer, case)

    # The oneDNN handler owns the weight.
    assert outcome(layer, loaded).losses == ["weight is no longer registered"]
    assert layer.input_scale.shape == ()
    assert layer.scheme.kernel.dnnl_handler is handler


@pytest.mark.parametrize("blocks", [False, True])
def test_rocm_mxfp8_keeps_the_storage_of_scales(blocks: bool):
    case = Case(
        lambda: make_linear(
            f"{CT}w8a8_mxfp8",
            lambda m: m.CompressedTensorsW8A8Mxfp8(),
            "init_mxfp8_linear_kernel",
            lambda: make_kernel(
                "mxfp8.rocm_native",
                "RocmDotScaledMxfp8LinearKernel",
                make_config(
                    "mxfp8.Mxfp8LinearKernel",
                    "Mxfp8LinearLayerConfig",
                    weight_shape=(sum(OUTPUT_SIZES), INPUT_SIZE),
                ),
            ),
        )
    )
    layer = case.build()
    loaded = loaded_parameters(layer)
    load(layer, loaded)
    if blocks:
        first = layer.weight_scale.data[::SCALES_PER_BLOCK]
        layer.weight_scale.data.copy_(first.repeat_interleave(SCALES_PER_BLOCK, 0))
    before = layer.weight_scale.clone()

    process(layer, case)

    rows = sum(OUTPUT_SIZES)
    step = SCALES_PER_BLOCK if blocks else 1
    assert outcome(layer, loaded).losses == []
    assert layer.weight_scale.shape == (rows // step, INPUT_SIZE // 32)
    assert torch.equal(layer.weight_scale, before[::step])
