# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after


class Mxfp8OnlineMoEMethod:
    def _setup_kernel(
        self, layer, w13, w2, w13_scale, w2_scale, w13_input_scale, w2_input_scale
    ):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
