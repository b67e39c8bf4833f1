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
        loader = AutoWeightsLoader(self)
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)

    def process_weights_after_loading(self):
        self.language_model.process_weights_after_loading()
