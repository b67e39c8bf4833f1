# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What FP8 experts have when Humming converts them; its conversion is a stand-in."""

from typing import Any

import pytest
import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    load,
    loaded_parameters,
    outcome,
    quantization_process,
)
from vllm.model_executor.layers.fused_moe.oracle import fp8
from vllm.model_executor.layers.quantization.utils import humming


def test_merged_scales_keep_the_loaded_parameters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        humming, "convert_to_humming_moe_kernel_format", lambda layer, **config: None
    )
    monkeypatch.setattr(fp8, "_humming_fp8_weight_schema", lambda *arguments: None)
    with quantization_process():
        case = cases()["moe-fp8"]
        layer: Any = case.build()
        loaded = loaded_parameters(layer)
        load(layer, loaded)
        merged = layer.w13_weight_scale.amax(1)

        fp8.convert_to_fp8_moe_kernel_format(
            fp8.Fp8MoeBackend.HUMMING,
            layer,
            layer.w13_weight,
            layer.w2_weight,
            merged,
            layer.w2_weight_scale,
            layer.w13_input_scale.max(),
            layer.w2_input_scale.max(),
        )

        assert outcome(layer, loaded).losses == []
        assert torch.equal(layer.w13_weight_scale, merged)
        assert layer.w13_input_scale.ndim == 0
