# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before, replacing


class DeepseekV41LLMForCausalLM:
    reload_safe_post_load = True
    _has_huge_pages = False
    """Whether the pages of the engram tables were collapsed. Later loads write to the
    same pages."""

    def load_weights(self, weights):
        with replacing("self.process_weights_after_loading()"):
            pass
        with replacing("config.engram_config and config.engram_config.use_thp"):
            not self._has_huge_pages and (
                config.engram_config and config.engram_config.use_thp
            )
        with before("model_config = config.model_config"):
            self._has_huge_pages = True
