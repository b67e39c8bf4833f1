# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class MarlinFP8ScaledMMLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("layer.input_scale = None"):
            # Activations are not quantized.
            retire_parameter(layer, "input_scale", missing_ok=True)
        with replacing("del layer.input_scale"):
            pass
