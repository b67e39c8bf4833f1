# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import refill_derived


class HummingLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("create_humming_locks(layer.weight.device)"):
            refill_derived(self, "locks", create_humming_locks(layer.weight.device))
