# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class DFlash2BeamModel:
    def build_context_kv_weights(self):
        """
        May run again: the tensors are kept and filled anew.
        """
        with before("attns = [layer.self_attn for layer in self.layers]"):
            # Still to come, in a reload of several calls.
            if any(param.is_meta for param in self.layers.parameters()):
                return
        with replacing("torch.cat($$$)"):
            refill_derived(
                self,
                "_context_kv_weight",
                torch.cat([attn.qkv_proj.weight[attn.q_size :] for attn in attns]),
            )
        with replacing("torch.stack($$$).contiguous()"):
            refill_derived(
                self,
                "_context_k_norm_weight",
                torch.stack([attn.k_norm.weight for attn in attns]),
            )

    def refill_derived_tensors(self) -> None:
        """Fills the stacked context weights anew."""
        self.build_context_kv_weights()
