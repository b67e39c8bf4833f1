# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class QuarkNVFP4:
    def process_weights_after_loading(self, layer):
        with replacing("del layer.input_scale_2"):
            # Humming's kernel replaces it, and so revives it, as its own.
            retire_parameter(layer, "input_scale_2")
        with replacing("del layer.weight_scale_2"):
            retire_parameter(layer, "weight_scale_2")
