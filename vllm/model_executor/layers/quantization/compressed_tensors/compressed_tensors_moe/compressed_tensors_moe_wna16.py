# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import move_parameter, replace_parameter


class CompressedTensorsWNA16MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight = layer.w13_weight_packed"):
            move_parameter(layer, "w13_weight_packed", "w13_weight")
        with replacing("layer.w2_weight = layer.w2_weight_packed"):
            move_parameter(layer, "w2_weight_packed", "w2_weight")
        with replacing('layer.register_parameter("w13_input_global_scale", $$$)'):
            replace_parameter(layer, "w13_input_global_scale", w13_input_global_scale)
        with replacing('layer.register_parameter("w2_input_global_scale", $$$)'):
            replace_parameter(layer, "w2_input_global_scale", w2_input_global_scale)

    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_wna16_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
