# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from collections.abc import Mapping

import torch
from series import replacing

from vllm.model_executor.layers.quantization.utils.humming.parameters import (
    checkpoint_parameters,
    kernel_operands,
    replace_converted,
)
from vllm.model_executor.utils import (
    get_live_param,
    move_parameter,
    replace_parameter,
)


def convert_linear_layer_to_humming_standard(layer, name_map):
    """The checkpoint's names stay registered, for the same parameters."""
    with replacing("delattr(layer, checkpoint_name)"):
        pass
    with replacing("if isinstance(tensor, torch.nn.Parameter): $$$"):
        move_parameter(layer, checkpoint_name, name)
    with replacing("setattr(layer, name, param)"):
        replace_parameter(layer, name, tensor.detach())


def prepare_humming_linear_layer_config(
    layer,
    quant_config,
    input_quant_config=None,
    *,
    input_schema=None,
    allow_input_schema_fallback=True,
    overrides: Mapping[str, torch.Tensor] | None = None,
):
    """Converts a linear layer's parameters to the layout of Humming's kernel.

    Args:
        overrides: Tensors to convert in the place of the parameters of these names,
            or in addition to them.
    """
    with replacing("dict(layer.named_parameters(recurse=False))"):
        {**checkpoint_parameters(layer), **(overrides or {})}
    with replacing("for name, _ in $PARAMETERS: delattr(layer, name)"):
        replace_converted(layer, tensors)
    with replacing("for name, tensor in tensors.items(): $$$"):
        pass


def apply_humming_linear(
    layer,
    x,
    *,
    skip_bias_add=False,
    layer_config,
    compute_config,
    locks,
):
    with replacing('getattr(layer, "input_scale", None)'):
        get_live_param(layer, "input_scale")
    with replacing('getattr(layer, "input_scale_2", None)'):
        get_live_param(layer, "input_scale_2")
    with replacing("humming_forward($$$)"):
        humming_forward(
            layer_config,
            inputs=flatten_inputs,
            bias=getattr(layer, "zero_bias" if skip_bias_add else "bias", None),
            **kernel_operands(layer),
            input_scale=input_scale,
            input_scale_2=input_scale_2,
            hadamard_block_size=layer.weight_schema.hadamard_block_size,
            locks=locks,
            compute_config=compute_config,
        )
