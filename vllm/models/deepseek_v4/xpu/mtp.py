# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DeepSeekV4MTP:
    # Without MegaMoE, which XPU refuses, there is nothing to finalize.
    reload_safe_post_load = True

    def load_weights(self, weights):
        with replacing("self.finalize_mega_moe_weights()"):
            pass

    def process_weights_after_loading(self) -> None:
        self.finalize_mega_moe_weights()
