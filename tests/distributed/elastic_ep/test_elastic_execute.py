# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a worker sends to a new one, besides its experts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm.distributed.elastic_ep import elastic_execute
from vllm.model_executor.utils import move_parameter, retire_parameter


class _Communicator:
    """Takes what would be sent."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def batch_isend_irecv(self, operations: list[Any]) -> None:
        self.sent += [operation.tensor for operation in operations]


def _model() -> Any:
    model: Any = torch.nn.Module()
    model.linear = torch.nn.Module()
    model.experts = torch.nn.Module()
    for layer, name in (
        (model.linear, "weight_packed"),
        (model.linear, "weight_scale_2"),
        (model.experts, "w13_weight_packed"),
    ):
        layer.register_parameter(name, torch.nn.Parameter(torch.ones(2, 4)))
    move_parameter(model.linear, "weight_packed", "weight")
    move_parameter(model.experts, "w13_weight_packed", "w13_weight")
    retire_parameter(model.linear, "weight_scale_2")
    return model


@pytest.mark.parametrize("is_sender", [True, False])
def test_each_parameter_but_those_of_experts_is_sent_once(is_sender: bool):
    model, communicator = _model(), _Communicator()
    group: Any = SimpleNamespace(device_communicator=communicator)

    elastic_execute.batch_transfer_weights(
        model, is_sender, 1, group, [[model.experts.w13_weight]]
    )

    expected = [model.linear.weight, model.linear.weight_scale_2]
    addresses = [param.data_ptr() for param in expected]
    assert [tensor.data_ptr() for tensor in communicator.sent] == addresses
