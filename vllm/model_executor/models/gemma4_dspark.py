# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class Gemma4DSparkModel:
    def _build_fused_kv_buffers(self):
        with before("layers_attn = [layer.self_attn for layer in self.layers]"):
            if not self.has_weights_to_fuse:
                return

    def _build_context_kv_buffers(self, layers_attn, has_bias):
        with replacing("self.hidden_norm.weight.data"):
            refill_derived(self, "_hidden_norm_weight", self.hidden_norm.weight.data)
        with replacing("torch.cat([a.k_proj.weight for a in layers_attn], dim=0)"):
            refill_derived(
                self,
                "_fused_k_weight",
                torch.cat([a.k_proj.weight for a in layers_attn], dim=0),
            )
        with replacing("torch.cat([a.k_proj.bias for a in layers_attn], dim=0)"):
            refill_derived(
                self,
                "_fused_k_bias",
                torch.cat([a.k_proj.bias for a in layers_attn], dim=0),
            )
        with replacing("torch.stack($$$).contiguous()"):
            refill_derived(
                self,
                "_k_norm_weights",
                torch.stack([a.k_norm.weight.data for a in layers_attn], dim=0),
            )
        with replacing("torch.ones($$$)"):
            refill_derived(
                self, "_v_norm_weights", torch.ones_like(self._k_norm_weights)
            )


class Gemma4DSparkForCausalLM:
    def load_weights(self, weights):
        with replacing("not includes_confidence_head"):
            not includes_confidence_head and not self.model.has_context_kv_buffers
