# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW4A4Fp4:
    def process_weights_after_loading(self, layer):
        with replacing("layer.weight = layer.weight_packed"):
            move_parameter(layer, "weight_packed", "weight")
        with replacing("del layer.weight_packed"):
            pass
