# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived

from .checkpoint import dequant_config


class Glm5NextLinearAttention:
    def __init__(self, config, vllm_config, prefix=""):
        with replacing("self.quant_config", inside="self.o_proj = $CALL($$$)"):
            dequant_config(saved_quant_config)

    def _forward(self, qkv_proj_states, g1, beta, core_attn_out):
        with replacing("if self._merged_conv_weight is None: $$$"):
            if self._merged_conv_weight is None:
                self.refill_derived_tensors()

    def refill_derived_tensors(self) -> None:
        """Merges the conv weights of q, k and v: ``[channels, width]`` in float32."""
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        merged = torch.cat([conv.weight.squeeze(1) for conv in convs])
        refill_derived(self, "_merged_conv_weight", merged)
