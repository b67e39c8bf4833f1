# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import removed, replacing


class DeepseekV4ForCausalLM:
    removed("finalizes_weights_during_load")
    reload_safe_post_load = True

    def load_weights(self, weights):
        with replacing("loaded_params = $LOADED"):
            return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)
        with replacing("self.process_weights_after_loading()"):
            pass
        with replacing("return loaded_params"):
            pass
