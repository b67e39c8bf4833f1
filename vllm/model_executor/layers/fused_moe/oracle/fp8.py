# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import refill_derived, replace_parameter


def make_fp8_moe_quant_config(
    fp8_backend,
    w1_scale,
    w2_scale,
    a1_scale,
    a2_scale,
    w1_bias=None,
    w2_bias=None,
    block_shape=None,
    per_act_token_quant=False,
    per_out_ch_quant=False,
    swiglu_limit=None,
    gemm1_alpha=None,
    gemm1_beta=None,
    layer=None,
):
    with after("g2_alphas = w2_scale * a2_scale"):
        a1_gscale, a2_gscale = 1.0 / a1_scale, 1.0 / a2_scale
    with replacing('layer.register_parameter("g1_alphas", $$$)'):
        replace_parameter(layer, "g1_alphas", g1_alphas)
    with replacing('layer.register_parameter("g2_alphas", $$$)'):
        replace_parameter(layer, "g2_alphas", g2_alphas)
    with after("g2_alphas = layer.g2_alphas"):
        a1_gscale = refill_derived(layer, "_a1_gscale", a1_gscale)
        a2_gscale = refill_derived(layer, "_a2_gscale", a2_gscale)
    with replacing("(1.0 / a1_scale)", inside="return fp8_w8a8_moe_quant_config($$$)"):
        a1_gscale
    with replacing("(1.0 / a2_scale)", inside="return fp8_w8a8_moe_quant_config($$$)"):
        a2_gscale
