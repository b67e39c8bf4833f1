# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW4A8Mxfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("param = $PARAMETER"):
            move_parameter(layer, f"{name}_packed", name)
        with replacing("delattr($$$)"):
            pass
        with replacing("layer.register_parameter($$$)"):
            pass
