# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import set_input_scale
from vllm.model_executor.utils import retire_parameter


class QuarkW8A8Int8MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("delattr(layer, attr)"):
            retire_parameter(layer, attr)


class QuarkNvfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing('replace_parameter(layer, "w13_input_scale_2", a13_scale)'):
            set_input_scale(layer, "w13_input_scale_2", a13_scale)
        with replacing('replace_parameter(layer, "w2_input_scale_2", a2_scale)'):
            set_input_scale(layer, "w2_input_scale_2", a2_scale)
