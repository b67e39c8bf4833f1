# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class CompressedTensorsKVCacheMethod:
    def process_weights_after_loading(self, layer):
        with replacing("# Discard all placeholders."):
            # The buffers above are what attention reads.
            pass
        with replacing("del layer.k_scale"):
            for name in ("k", "v", "q"):
                retire_parameter(layer, f"{name}_scale")
                retire_parameter(layer, f"{name}_zero_point")
        with replacing("del layer.v_scale"):
            pass
        with replacing("del layer.q_scale"):
            pass
        with replacing("del layer.k_zero_point"):
            pass
        with replacing("del layer.v_zero_point"):
            pass
        with replacing("del layer.q_zero_point"):
            pass
