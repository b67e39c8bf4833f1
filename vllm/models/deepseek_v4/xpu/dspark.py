# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DSparkDeepseekV4ForCausalLM:
    # Without MegaMoE, which XPU refuses, there is nothing to finalize.
    reload_safe_post_load = True

    def load_weights(self, weights):
        with replacing("self._finalize_moe()"):
            pass

    def process_weights_after_loading(self) -> None:
        self._finalize_moe()
