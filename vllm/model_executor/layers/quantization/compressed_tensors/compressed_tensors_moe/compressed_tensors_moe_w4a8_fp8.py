# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW4A8Fp8MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("setattr($$$)"):
            move_parameter(layer, f"{name}_weight_packed", f"{name}_weight")
        with replacing("delattr($$$)"):
            pass
        with after("self.moe_kernel = make_w4a8_moe_kernel($$$)"):
            experts = self.moe_kernel.fused_experts
            experts.keep_constants(layer)
            # Those that the kernel reads; Humming has none.
            self.b_strides1 = getattr(experts, "b_strides1", None)
            self.b_strides2 = getattr(experts, "b_strides2", None)
