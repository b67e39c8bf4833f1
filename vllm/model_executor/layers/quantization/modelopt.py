# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


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
