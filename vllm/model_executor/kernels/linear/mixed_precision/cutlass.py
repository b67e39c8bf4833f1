# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils import replace_parameter


class CutlassW4A8LinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("w_s.data = fp8_scales"):
            replace_parameter(layer, self.w_s_name, fp8_scales)
        with replacing('layer.register_parameter("weight_chan_scale", $$$)'):
            replace_parameter(layer, "weight_chan_scale", chan_scales)
