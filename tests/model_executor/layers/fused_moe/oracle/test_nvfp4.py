# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Names of NVFP4 experts' parameters before Humming, and input scales after it."""

from collections.abc import Iterator
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
from vllm.model_executor.layers.fused_moe.oracle import nvfp4
from vllm.model_executor.layers.quantization.utils import humming
from vllm.model_executor.utils import get_live_param, kernel_parameters


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def test_humming_reads_packed_weights_under_the_checkpoints_name(
    monkeypatch: pytest.MonkeyPatch,
):
    case = cases()["moe-ct-nvfp4"]
    layer: Any = case.build()
    load(layer, loaded_parameters(layer))
    process(layer, case)
    given: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(
        humming,
        "convert_to_humming_moe_kernel_format",
        lambda layer, quant_config: given.update(kernel_parameters(layer)),
    )

    nvfp4.convert_to_nvfp4_moe_kernel_format(  # type: ignore[misc]
        nvfp4.NvFp4MoeBackend.HUMMING, layer, *[None] * 8, is_act_and_mul=True
    )

    assert given["w13_weight_packed"] is layer.w13_weight
    assert given["w2_weight_packed"] is layer.w2_weight
    assert not given.keys() & {"w13_weight", "w2_weight"}


def test_an_input_scale_that_is_not_read_is_retired():
    layer: Any = torch.nn.Module()
    layer.register_parameter("scale", torch.nn.Parameter(torch.ones(3, 2)))

    nvfp4.set_input_scale(layer, "scale", None)

    assert layer.scale.shape == (3, 2)
    assert get_live_param(layer, "scale") is None


def test_an_input_scale_that_the_conversion_dropped_is_none():
    layer: Any = torch.nn.Module()

    nvfp4.set_input_scale(layer, "scale", None)

    assert layer.scale is None


def test_an_input_scale_that_is_read_replaces_the_loaded_one():
    layer: Any = torch.nn.Module()
    layer.register_parameter("scale", torch.nn.Parameter(torch.ones(3, 2)))
    loaded = layer.scale
    nvfp4.set_input_scale(layer, "scale", None)

    nvfp4.set_input_scale(layer, "scale", torch.tensor(2.0))

    assert get_live_param(layer, "scale") is loaded
    assert loaded == 2.0
