# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class MuseSparkDSparkModel:
    def _build_fused_kv_buffers(self):
        with before("layers_attn = [layer.self_attn for layer in self.layers]"):
            if not self.has_weights_to_fuse:
                return
        with replacing("self._stacked_kv_weight = $VALUE"):
            kv_weights = [
                attn.qkv_proj.weight[attn.q_size : attn.q_size + 2 * attn.kv_size]
                for attn in layers_attn
            ]
            self._stacked_kv_weight = refill_derived(
                self, "_stacked_kv_weight", torch.stack(kv_weights, dim=0)
            )
