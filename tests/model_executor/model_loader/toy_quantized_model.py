# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A toy quantized model, and the faults that a reload could leave in it."""

from dataclasses import dataclass
from typing import Any

import torch

GSCALE = "0.quant_method.kernel.quant_config.gscale"


@dataclass
class ToyQuantConfig:
    gscale: torch.Tensor


class ToyKernel:
    """Neither a module nor registered anywhere, as an experts object is."""

    def __init__(self, config: ToyQuantConfig):
        self.quant_config = config
        self.strides = torch.full((4,), 8, dtype=torch.int64)


class ToyQuantMethod:
    def __init__(self, kernel: ToyKernel):
        self.kernel = kernel


class ToyLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = torch.arange(16, dtype=torch.float32).view(4, 4)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.folded = torch.full((4,), 2.0)
        self.quant_method = ToyQuantMethod(ToyKernel(ToyQuantConfig(torch.ones(2))))


def toy_model() -> Any:
    return torch.nn.Sequential(ToyLayer(), ToyLayer())


def kernel(model: Any) -> ToyKernel:
    return model[0].quant_method.kernel


def rebind_parameter(model: Any) -> None:
    model[0].weight = torch.nn.Parameter(model[0].weight.clone(), requires_grad=False)


def move_buffer(model: Any) -> None:
    model[0].scale.data = model[0].scale.clone()


def replace_attribute(model: Any) -> None:
    model[0].folded = model[0].folded.clone()


def replace_kernel_tensor(model: Any) -> None:
    kernel(model).strides = kernel(model).strides.clone()


def replace_quant_config_tensor(model: Any) -> None:
    config = kernel(model).quant_config
    config.gscale = config.gscale.clone()


def replace_kernel(model: Any) -> None:
    model[0].quant_method.kernel = ToyKernel(kernel(model).quant_config)


def transpose_in_place(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.t()


def flip_bit(model: Any) -> None:
    model[0].weight.data.view(torch.uint8)[1, 3] ^= 1


def drop_buffer(model: Any) -> None:
    del model[0].scale


def add_attribute(model: Any) -> None:
    model[0].kept = torch.zeros(4)


def enlarge_storage(model: Any) -> None:
    model[0].weight.data = torch.cat([model[0].weight.data] * 2)[:4]


def change_dtype(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.view(torch.int32)


def turn_buffer_into_attribute(model: Any) -> None:
    scale = model[0].scale
    del model[0].scale
    model[0].scale = scale


def shrink_view(model: Any) -> None:
    model[0].weight.data = model[0].weight.data[:2]
