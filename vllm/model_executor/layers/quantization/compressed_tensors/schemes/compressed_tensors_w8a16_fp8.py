# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW8A16Fp8:
    def process_weights_after_loading(self, layer):
        with replacing("weight_scale_data = layer.weight_scale.data"):
            # Block kernels read the scale as "weight_scale_inv".
            move_parameter(layer, "weight_scale", "weight_scale_inv")
        with replacing('del layer._parameters["weight_scale"]'):
            pass
        with replacing('replace_parameter(layer, "weight_scale_inv", $$$)'):
            pass
