# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import before, replacing

from vllm.model_executor.utils import (
    move_parameter,
    refill_derived,
    replace_parameter,
    retire_parameter,
)


def convert_to_nvfp4_moe_kernel_format(
    nvfp4_backend,
    layer,
    w13,
    w13_scale,
    w13_scale_2,
    a13_scale,
    w2,
    w2_scale,
    w2_scale_2,
    a2_scale,
    is_act_and_mul,
    use_a16=False,
    trtllm_hidden_alignment=256,
):
    with replacing("layer.w13_weight_packed = layer.w13_weight"):
        move_parameter(layer, "w13_weight", "w13_weight_packed")
    with replacing("layer.w2_weight_packed = layer.w2_weight"):
        move_parameter(layer, "w2_weight", "w2_weight_packed")


def make_nvfp4_moe_quant_config(
    backend,
    w13_scale,
    w2_scale,
    w13_scale_2,
    w2_scale_2,
    a13_scale,
    a2_scale,
    swiglu_limit=None,
    swiglu_alpha=None,
    swiglu_beta=None,
    layer=None,
    use_a16=False,
):
    with before("# Pass w13_scale_2 / w2_scale_2 directly as g1/g2_alphas."):
        a1_gscale, a2_gscale = 1.0 / a13_scale, 1.0 / a2_scale
        if layer is not None:
            a1_gscale = refill_derived(layer, "_a1_gscale", a1_gscale)
            a2_gscale = refill_derived(layer, "_a2_gscale", a2_gscale)

    with replacing("(1.0 / a13_scale)"):
        a1_gscale
    with replacing("(1.0 / a2_scale)"):
        a2_gscale


def set_input_scale(
    layer: torch.nn.Module, name: str, scale: torch.Tensor | None
) -> None:
    """Gives a layer the input scale that `convert_to_nvfp4_moe_kernel_format` returned.

    Args:
        layer: Layer whose experts were converted.
        name: Name under which the input scale was loaded.
        scale: What the kernel reads, float32; None where it leaves activations as they
            are. The loaded scale, if the conversion has left one, is then retired.
    """
    if scale is None and layer._parameters.get(name) is not None:
        retire_parameter(layer, name)
    else:
        replace_parameter(layer, name, scale)
