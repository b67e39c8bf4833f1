# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import move_parameter


class AutoGPTQMoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight = layer.w13_qweight"):
            move_parameter(layer, "w13_qweight", "w13_weight")
        with replacing("layer.w2_weight = layer.w2_qweight"):
            move_parameter(layer, "w2_qweight", "w2_weight")

    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_wna16_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
