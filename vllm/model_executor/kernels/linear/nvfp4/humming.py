# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter


class HummingNvFp4LinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing('if not hasattr(layer, "weight_packed"): $$$'):
            move_parameter(layer, "weight", "weight_packed")
