# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Default KV-cache scales of attention layers."""

import pytest
import torch

from vllm.model_executor.layers.attention.attention import set_default_quant_scales

SCALES = (
    "_q_scale",
    "_k_scale",
    "_v_scale",
    "_prob_scale",
    "_k_scale_cpu",
    "_v_scale_cpu",
)


@pytest.fixture
def layer() -> torch.nn.Module:
    layer = torch.nn.Module()
    set_default_quant_scales(layer, register_buffer=True)
    return layer


@pytest.mark.parametrize("name", SCALES)
def test_defaults_are_set_again_in_the_same_tensor(layer: torch.nn.Module, name: str):
    scale = getattr(layer, name)
    address = scale.data_ptr()
    scale.fill_(2.0)

    set_default_quant_scales(layer)

    assert getattr(layer, name) is scale
    assert scale.data_ptr() == address
    assert scale.item() == 1.0


@pytest.mark.parametrize("name", ["_k_scale_cpu", "_v_scale_cpu"])
def test_host_copies_are_on_the_host_of_a_model_built_elsewhere(name: str):
    layer = torch.nn.Module()

    with torch.device("meta"):
        set_default_quant_scales(layer, register_buffer=True)

    assert getattr(layer, name).device.type == "cpu"
