# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW4A8Fp8MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("setattr($$$)"):
            move_parameter(layer, f"{name}_weight_packed", f"{name}_weight")
        with replacing("delattr($$$)"):
            pass
