# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import move_parameter


class INCMxfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight = $PARAMETER"):
            move_parameter(layer, "w13_weight_packed", "w13_weight")
        with replacing('delattr(layer, "w13_weight_packed")'):
            pass
        with replacing("layer.w2_weight = $PARAMETER"):
            move_parameter(layer, "w2_weight_packed", "w2_weight")
        with replacing('delattr(layer, "w2_weight_packed")'):
            pass
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
