# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from functools import partial

from series import after, replacing

from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import set_input_scale
from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight
from vllm.model_executor.utils import retire_parameter


class QuarkW8A8Int8MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("delattr(layer, attr)"):
            retire_parameter(layer, attr)
        with after("self.moe_kernel = make_int8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class QuarkNvfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing('replace_parameter(layer, "w13_input_scale_2", a13_scale)'):
            set_input_scale(layer, "w13_input_scale_2", a13_scale)
        with replacing('replace_parameter(layer, "w2_input_scale_2", a2_scale)'):
            set_input_scale(layer, "w2_input_scale_2", a2_scale)
        with after("self.moe_kernel = make_nvfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class QuarkOCP_MX_MoEMethod:
    def _setup_kernel(self, layer):
        with replacing("# Store on layer for apply(), scales are PrecisionConfig"):
            # The layer has them already, for apply(); scales are PrecisionConfig
            pass
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)

    def apply(
        self,
        layer,
        x,
        topk_weights,
        topk_ids,
        shared_experts,
        shared_experts_input,
    ):
        with replacing("layer.w13_weight"):
            triton_weight(layer, "w13_weight")
        with replacing("layer.w2_weight"):
            triton_weight(layer, "w2_weight")

    def apply_monolithic(self, layer, x, router_logits, input_ids=None):
        with replacing("layer.w13_weight"):
            triton_weight(layer, "w13_weight")
        with replacing("layer.w2_weight"):
            triton_weight(layer, "w2_weight")


class QuarkW4A16Int4MoEMethod:
    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_wna16_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class QuarkW8A8Fp8MoEMethod:
    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)

    def get_fused_moe_quant_config(self, layer):
        with replacing("make_fp8_moe_quant_config"):
            # The layer holds the scales that are derived.
            partial(make_fp8_moe_quant_config, layer=layer)


class QuarkW8A8Mxfp8MoEMethod:
    def process_weights_after_loading(self, layer):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
