# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import set_input_scale
from vllm.model_executor.utils import retire_parameter


class ModelOptNvFp4FusedMoE:
    def process_weights_after_loading(self, layer):
        with replacing('replace_parameter(layer, "w13_input_scale", a13_scale)'):
            set_input_scale(layer, "w13_input_scale", a13_scale)
        with replacing('replace_parameter(layer, "w2_input_scale", a2_scale)'):
            set_input_scale(layer, "w2_input_scale", a2_scale)


class KNvfp4Static:
    def process(self, layer, role):
        with replacing("del layer.weight_scale_2"):
            retire_parameter(layer, "weight_scale_2")


class KNvfp4Dynamic:
    def process(self, layer, role):
        with replacing("del layer.input_scale"):
            retire_parameter(layer, "input_scale")


class _DropInputScale:
    def post_process(self, layer):
        with replacing("del layer.input_scale"):
            retire_parameter(layer, "input_scale")
