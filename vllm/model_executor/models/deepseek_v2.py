# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.utils.packed_rows import runtime_weight


class DeepSeekV2FusedQkvAProjLinear:
    def __init__(self, input_size, output_size, quant_config=None, prefix=""):
        with replacing("self.weight.dtype"):
            runtime_weight(self).dtype
        with replacing("self.weight.shape[0]"):
            runtime_weight(self).shape[0]
        with replacing("self.weight.shape[1]"):
            runtime_weight(self).shape[1]
