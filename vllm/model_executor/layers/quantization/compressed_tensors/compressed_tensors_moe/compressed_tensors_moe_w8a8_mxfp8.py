# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after


class CompressedTensorsW8A8Mxfp8MoEMethod:
    def process_weights_after_loading(self, layer):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
