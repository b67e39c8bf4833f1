# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived


class DFlashLagunaModel:
    def _build_context_kv_buffers(self, layers_attn, has_bias):
        with replacing(
            "torch.stack([a.qkv_proj.weight[$$$] for a in $$$], dim=0).contiguous()"
        ):
            refill_derived(
                self,
                "_kv_weights",
                torch.stack(
                    [a.qkv_proj.weight[a.q_size :] for a in layers_attn], dim=0
                ),
            )
        with replacing(
            "torch.stack([a.qkv_proj.bias[$$$] for a in $$$], dim=0).contiguous()"
        ):
            refill_derived(
                self,
                "_kv_biases",
                torch.stack([a.qkv_proj.bias[a.q_size :] for a in layers_attn], dim=0),
            )
        with replacing("self._input_layernorm_weights = $VALUE"):
            layernorms = [layer.input_layernorm.weight.data for layer in self.layers]
            self._input_layernorm_weights = refill_derived(
                self, "_input_layernorm_weights", torch.stack(layernorms, dim=0)
            )
        with replacing("self._k_norm_weights = $VALUE"):
            k_norms = [a.k_norm.weight.data for a in layers_attn]
            self._k_norm_weights = refill_derived(
                self, "_k_norm_weights", torch.stack(k_norms, dim=0)
            )
