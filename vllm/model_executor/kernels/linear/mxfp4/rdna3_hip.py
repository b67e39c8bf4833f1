# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import replace_parameter


class Rdna3W4A8MxFp4LinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("layer.weight = $$$"):
            replace_parameter(layer, "weight", weight.contiguous())
        with replacing("layer.weight_scale = $$$"):
            replace_parameter(layer, "weight_scale", weight_scale.contiguous())
