# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Who holds a tensor that a reload made gets the startup tensor."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm.model_executor.model_loader.reload.handover import MadeTensor, hand_over


@pytest.fixture
def startup() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.arange(12.0).view(3, 4), requires_grad=False)


@pytest.fixture
def made(startup: torch.nn.Parameter) -> torch.nn.Parameter:
    return torch.nn.Parameter(startup.data.clone(), requires_grad=False)


def _layer(**attributes: Any) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.quant_method = SimpleNamespace(**attributes)
    return layer


def _hand_over(
    layer: torch.nn.Module, made: torch.Tensor, startup: torch.Tensor
) -> None:
    hand_over(layer, [MadeTensor(made, made.data, startup, startup.data)])


def test_attributes_and_members_become_the_startup_tensor(startup, made):
    method = _layer(scale=made, by_name={"scale": made}, list=[made]).quant_method
    layer = _layer()
    layer.quant_method = method

    _hand_over(layer, made, startup)

    assert method.scale is startup
    assert method.by_name["scale"] is startup
    assert method.list[0] is startup


def test_a_plain_attribute_of_the_layer_becomes_the_startup_tensor(startup, made):
    layer = torch.nn.Module()
    object.__setattr__(layer, "alias", made)

    _hand_over(layer, made, startup)

    assert vars(layer)["alias"] is startup


def test_members_of_tuples_and_closures_read_the_startup_memory(startup, made):
    held = (made,)
    layer = _layer(held=held, closure=lambda: made)

    _hand_over(layer, made, startup)

    assert held[0].data_ptr() == startup.data_ptr()
    assert layer.quant_method.closure().data_ptr() == startup.data_ptr()


def test_a_view_becomes_the_same_view_of_the_startup_tensor(startup, made):
    view = made.data.t()[1:3]
    layer = _layer(view=view)

    _hand_over(layer, made, startup)

    expected = startup.data.t()[1:3]
    assert layer.quant_method.view is view
    assert view.data_ptr() == expected.data_ptr()
    assert view.stride() == expected.stride()
    assert torch.equal(view, expected)


def test_a_view_of_other_data_of_the_startup_tensor_moves_back(startup):
    memory, rebound = startup.data, startup.data.clone()
    layer = _layer(view=rebound[1])

    hand_over(layer, [MadeTensor(startup, rebound, startup, memory)])

    assert layer.quant_method.view.data_ptr() == memory[1].data_ptr()


def test_a_view_of_another_layout_stays(startup, made):
    made.data = made.data.t().contiguous().t()
    view = made.data[1]
    address = view.data_ptr()

    _hand_over(_layer(view=view), made, startup)

    assert view.data_ptr() == address


def test_other_modules_are_not_entered(startup, made):
    other = _layer(scale=made)
    layer = _layer(owner=other)

    _hand_over(layer, made, startup)

    assert other.quant_method.scale is made


def test_a_tensor_of_its_own_is_left(startup, made):
    own = torch.ones(3)
    layer = _layer(own=own, nothing=torch.empty(0))

    _hand_over(layer, made, startup)

    assert layer.quant_method.own is own
    assert torch.equal(own, torch.ones(3))
