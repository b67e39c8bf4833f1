# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class QuarkW8A8Int8:
    def process_weights_after_loading(self, layer):
        with replacing('layer.register_parameter("weight_zero_point", None)'):
            retire_parameter(layer, "weight_zero_point")
        with replacing('delattr(layer, "weight_zero_point")'):
            pass
        with replacing('layer.register_parameter("input_zero_point", None)'):
            retire_parameter(layer, "input_zero_point", missing_ok=True)
        with replacing('delattr(layer, "input_zero_point")'):
            pass
