# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class Dynamic4bitLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("setattr(layer, self.w_s_name, None)"):
            # The packed weight holds the scales as well.
            retire_parameter(layer, self.w_s_name)
