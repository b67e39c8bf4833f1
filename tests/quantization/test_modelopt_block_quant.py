# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The packed weight of a b12x linear layer stays where captured graphs read it.

b12x runs on GPUs. A stand-in packs here; the method and its reload are vLLM's own.
"""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from vllm.model_executor.layers.quantization import modelopt_block_quant
from vllm.model_executor.layers.quantization.modelopt_block_quant import (
    ModelOptBlockQuantLinearMethod,
)


@dataclass(frozen=True)
class Packed:
    """What b12x packs a weight into."""

    values: torch.Tensor
    in_features: int
    out_features: int


def _pack(weight: torch.Tensor, recipe: str) -> Packed:
    return Packed(weight.flip(0).clone(), weight.shape[1], weight.shape[0])


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The method, with stand-ins for b12x and the engine's settings."""
    api = SimpleNamespace(
        pack_weight=_pack,
        BlockscaledQuery=lambda **fields: fields,
        plan_regimes=lambda query, exact_m: query,
    )
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=8, max_num_scheduled_tokens=None
        ),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[]),
    )
    for name in ("b12x", "b12x.sequence"):
        monkeypatch.setitem(sys.modules, name, Mock())
    monkeypatch.setattr(modelopt_block_quant, "get_b12x_blockscaled", lambda: api)
    monkeypatch.setattr(modelopt_block_quant, "get_current_vllm_config", lambda: config)
    made: Any = ModelOptBlockQuantLinearMethod.__new__(ModelOptBlockQuantLinearMethod)
    made.is_embedding = False
    made.codec = "q8_0"
    return made


def test_a_weight_that_is_packed_again_goes_into_the_first(method: Any):
    layer: Any = torch.nn.Module()
    first = None

    for run in range(3):
        weight = torch.full((4, 6), run, dtype=torch.uint8)
        weight[0] += 1
        param = torch.nn.Parameter(weight, requires_grad=False)
        layer.register_parameter("weight", param)
        method.process_weights_after_loading(layer)

        values = layer.b12x_block_weight.values
        first = values.data_ptr() if first is None else first
        assert values.data_ptr() == first
        assert torch.equal(values, weight.flip(0))
