# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.model_executor.utils import retire_parameter


class CutlassInt8ScaledMMLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("setattr(layer, i_zp_name, None)"):
            retire_parameter(layer, i_zp_name, missing_ok=True)
        with replacing("setattr(layer, azp_adj_name, torch.nn.Parameter($$$))"):
            replace_parameter(layer, azp_adj_name, azp_adj)
