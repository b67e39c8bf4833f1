# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class ConchLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("layer.register_parameter(self.w_zp_name, None)"):
            retire_parameter(layer, self.w_zp_name, missing_ok=True)
