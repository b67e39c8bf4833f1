# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class DeepseekV41ForCausalLM:
    reload_safe_post_load = True

    def load_weights(self, weights):
        with replacing(
            "# The child finalizes in load_weights, so its weights must reach it as"
        ):
            # Loading ends with a release of the file cache: weights reach the child as
            pass
        with replacing("loaded_params = $LOADED"):
            return loader.load_weights(mapped)
        with replacing(
            "# The child's load_weights already ran its post-load finalization."
        ):
            pass
        with replacing("self._weights_finalized = True"):
            pass
        with replacing("return loaded_params"):
            pass

    def process_weights_after_loading(self) -> None:
        self.language_model.process_weights_after_loading()
