# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import set_input_scale
from vllm.model_executor.utils import refill_derived, retire_parameter


class ModelOptNvFp4FusedMoE:
    def process_weights_after_loading(self, layer):
        with replacing('replace_parameter(layer, "w13_input_scale", a13_scale)'):
            set_input_scale(layer, "w13_input_scale", a13_scale)
        with replacing('replace_parameter(layer, "w2_input_scale", a2_scale)'):
            set_input_scale(layer, "w2_input_scale", a2_scale)

    def _build_moe_kernel(self, layer):
        with after("self.moe_kernel = make_nvfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class KNvfp4Static:
    def process(self, layer, role):
        with replacing("del layer.weight_scale_2"):
            retire_parameter(layer, "weight_scale_2")


class KNvfp4Dynamic:
    def process(self, layer, role):
        with replacing("del layer.input_scale"):
            retire_parameter(layer, "input_scale")


class _DropInputScale:
    def post_process(self, layer):
        with replacing("del layer.input_scale"):
            retire_parameter(layer, "input_scale")


class ModelOptFp8MoEMethod:
    def _setup_kernel(
        self, layer, w13, w2, w13_scale, w2_scale, w13_input_scale, w2_input_scale
    ):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class ModelOptMxFp8FusedMoE:
    def process_weights_after_loading(self, layer):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


class ModelOptLinearMethod:
    def process_weights_after_loading(self, layer):
        with replacing('layer.register_buffer("_nvfp4_weight_for_gather", $$$)'):
            for name in ("weight", "weight_scale", "weight_global_scale"):
                copy = getattr(layer, name).detach().clone()
                refill_derived(layer, f"_nvfp4_{name}_for_gather", copy)
        with replacing('layer.register_buffer("_nvfp4_weight_scale_for_gather", $$$)'):
            pass
        with replacing(
            'layer.register_buffer("_nvfp4_weight_global_scale_for_gather", $$$)'
        ):
            pass
