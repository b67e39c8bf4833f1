# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class FBGEMMFp8LinearMethod:
    def process_weights_after_loading(self, layer):
        with replacing("del layer.input_scale_ub"):
            retire_parameter(layer, "input_scale_ub")
