# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class Qwen3DSparkForCausalLM:
    def load_weights(self, weights):
        with replacing("self.model.confidence_head = None"):
            # A reload may bring the head in another of its calls.
            if not self.model.has_context_kv_buffers:
                self.model.confidence_head = None
