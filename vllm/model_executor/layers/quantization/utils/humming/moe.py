# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from typing import TYPE_CHECKING

import torch
from series import replacing

from vllm.model_executor.layers.quantization.utils.humming.parameters import (
    checkpoint_parameters,
    expert_operands,
    live_parameters,
    replace_converted,
)
from vllm.model_executor.utils import get_live_param

if TYPE_CHECKING:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts


def get_humming_moe_quant_config(
    layer,
    humming_configs=None,
    gemm1_alpha=None,
    gemm1_beta=None,
    gemm1_clamp_limit=None,
):
    with replacing("make_humming_moe_quant_config($$$)"):
        make_humming_moe_quant_config(
            q_dtype,
            str(weight_schema.b_dtype),
            weight_group_shape,
            activation_group_shape,
            **expert_operands(layer),
            gemm1_alpha=gemm1_alpha,
            gemm1_beta=gemm1_beta,
            gemm1_clamp_limit=gemm1_clamp_limit,
            humming_configs=humming_configs,
        )
    with replacing('getattr(layer, f"{sublayer}_{name}", None)'):
        get_live_param(layer, f"{sublayer}_{name}")


def _extract_sublayer_tensors(layer, sublayer_name):
    """Only what a kernel may read: no retired parameter, and an alias once."""
    with replacing("return $RESULT"):
        live = live_parameters(layer, sublayer_name + "_")
        return {name: param.detach() for name, param in live.items()}


def _replace_layer_parameters(layer, sublayer_name, tensors, preserve_bias=False):
    """What was loaded stays registered."""
    with replacing("# Delete old parameters"):
        pass
    with replacing("# Set new parameters"):
        pass
    with replacing("for name, _ in list(layer.named_parameters()): $$$"):
        keep = ("bias",) if preserve_bias else ()
        replace_converted(layer, tensors, sublayer_name + "_", keep)
    with replacing("for name, tensor in tensors.items(): $$$"):
        pass


def _convert_sublayer_to_humming(
    layer,
    sublayer_name,
    shape_n,
    shape_k,
    weight_schema,
    input_schema,
    num_experts,
    param_dtype,
):
    with replacing("_extract_sublayer_tensors(layer, sublayer_name)"):
        _loaded_sublayer_tensors(layer, sublayer_name)


def _loaded_sublayer_tensors(
    layer: "RoutedExperts", sublayer_name: str
) -> dict[str, torch.Tensor]:
    """The tensors of a sublayer that its conversion starts from."""
    loaded = checkpoint_parameters(layer, sublayer_name + "_")
    return {name: param.detach() for name, param in loaded.items()}
