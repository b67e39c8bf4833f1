# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DeepseekV4ForConditionalGeneration:
    def __init__(self, *, vllm_config, prefix=""):
        with replacing("self._weights_finalized = False"):
            pass

    @property
    def reload_safe_post_load(self) -> bool:
        """Whether the post-load hook may run again: what the language model says."""
        return getattr(self.language_model, "reload_safe_post_load", False)

    def load_weights(self, weights):
        with replacing("child_finalizes = $DECLARED"):
            pass
        with replacing("if child_finalizes: $$$"):
            pass
        with replacing("loaded_params = $LOADED"):
            return loader.load_weights(mapped)
        with replacing("self._weights_finalized = child_finalizes"):
            pass
        with replacing("return loaded_params"):
            pass

    def process_weights_after_loading(self):
        with replacing('if getattr(self, "_weights_finalized", False): return'):
            pass
        with replacing("self._weights_finalized = True"):
            pass
