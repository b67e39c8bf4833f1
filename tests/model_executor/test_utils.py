# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What happens to a layer's parameters in post-load processing."""

import pytest
import torch

from vllm.model_executor.utils import replace_parameter


def _layer(**attributes: object) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    for name, value in attributes.items():
        setattr(layer.weight, name, value)
    return layer


@pytest.mark.parametrize(
    "new",
    [torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 3, dtype=torch.int8)],
    ids=["same layout", "other shape", "other dtype"],
)
def test_replace_parameter_returns_the_parameter_it_kept(new: torch.Tensor):
    layer = _layer()
    kept = layer.weight

    assert replace_parameter(layer, "weight", new) is kept
    assert layer.weight is kept
    assert torch.equal(kept, new)


def test_replace_parameter_returns_the_parameter_it_registered():
    layer = torch.nn.Module()

    returned = replace_parameter(layer, "weight", torch.ones(2, 3))

    assert returned is layer.weight
    assert dict(layer.named_parameters())["weight"] is returned


def test_replace_parameter_returns_what_took_an_online_source_s_place():
    layer = _layer(requantization_source=True)
    source = layer.weight

    returned = replace_parameter(layer, "weight", torch.ones(2, 3))

    assert returned is layer.weight
    assert returned is not source


def test_replace_parameter_returns_none_for_a_parameter_set_to_none():
    layer = _layer()

    assert replace_parameter(layer, "weight", None) is None
    assert layer.weight is None
