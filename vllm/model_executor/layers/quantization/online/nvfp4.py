# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after


class Nvfp4OnlineMoEMethod:
    def _setup_kernel(self, layer):
        with after("self.moe_kernel = make_nvfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
