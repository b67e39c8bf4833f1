# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DSparkDeepseekV4ForCausalLM:
    reload_safe_post_load = True
    _is_loaded = False
    """Whether the first load is over. It decides for good which parts there are."""

    def load_weights(self, weights):
        with replacing("self.model.confidence_head is not None and $REST"):
            not self._is_loaded and (
                self.model.confidence_head is not None and not loaded_confidence_head
            )

    def process_weights_after_loading(self) -> None:
        """Runs when a load is complete."""
        self._is_loaded = True
