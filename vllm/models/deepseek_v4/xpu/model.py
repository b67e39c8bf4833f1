# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DeepseekV4ForCausalLM:
    # Without MegaMoE, which XPU refuses, there is nothing to finalize.
    reload_safe_post_load = True

    def load_weights(self, weights):
        with replacing("loaded_params = $LOADED"):
            return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
        with replacing("self.model.finalize_mega_moe_weights()"):
            pass
        with replacing("return loaded_params"):
            pass

    def process_weights_after_loading(self) -> None:
        self.model.finalize_mega_moe_weights()
