# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from .checkpoint import dequant_config


class Glm5NextLinearAttention:
    def __init__(self, config, vllm_config, prefix=""):
        with replacing("self.quant_config", inside="self.o_proj = $CALL($$$)"):
            dequant_config(saved_quant_config)
