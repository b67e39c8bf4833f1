# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after


class Int8OnlineMoEMethod:
    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_int8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
