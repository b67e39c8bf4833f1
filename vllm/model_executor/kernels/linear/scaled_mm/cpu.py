# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils import replace_parameter


class CPUInt8ScaledMMLinearKernel:
    def process_weights_for_onednn(self, layer):
        with replacing("setattr(layer, azp_adj_name, torch.nn.Parameter($$$))"):
            replace_parameter(layer, azp_adj_name, azp_adj)
