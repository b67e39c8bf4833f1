# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class K3DSparkModel:
    _context_kv_scales: torch.Tensor | None = None

    def _build_fused_context_kv_metadata(self):
        """
        May run again: the tensors are kept and filled anew.
        """
        with replacing("self._context_kv_norm_weights"):
            norm_weights
        with before("self._num_context_layers = len(attentions)"):
            refill_derived(self, "_context_kv_norm_weights", norm_weights)
        with replacing("self._context_kv_scales: torch.Tensor | None = None"):
            pass
        with replacing("self._context_kv_scales = $STACKED"):
            scales = torch.stack([attn._k_scale.reshape(()) for attn in attentions])
            refill_derived(self, "_context_kv_scales", scales)


class K3DSparkForCausalLM:
    reload_safe_post_load = True
