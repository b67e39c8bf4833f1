# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class DFlashQwen3Model:
    def _build_context_kv_buffers(self, layers_attn, has_bias):
        with replacing("self.hidden_norm.weight.data"):
            refill_derived(self, "_hidden_norm_weight", self.hidden_norm.weight.data)
        with replacing("torch.cat(kv_weights, dim=0)"):
            refill_derived(self, "_fused_kv_weight", torch.cat(kv_weights, dim=0))
        with replacing("torch.cat(kv_biases, dim=0)"):
            refill_derived(self, "_fused_kv_bias", torch.cat(kv_biases, dim=0))
        with replacing("torch.stack($$$).contiguous()"):
            refill_derived(
                self,
                "_k_norm_weights",
                torch.stack([a.k_norm.weight.data for a in layers_attn], dim=0),
            )

    def _build_fused_kv_buffers(self):
        """
        May run again: the tensors are kept and filled anew. Does nothing while weights
        are still to come, or where post-load processing has released them.
        """
        with before("layers_attn = [layer.self_attn for layer in self.layers]"):
            if not self.has_weights_to_fuse:
                return

    @property
    def has_context_kv_buffers(self) -> bool:
        """Whether the fused context buffers have been built, by a first load."""
        return hasattr(self, "_num_attn_layers")

    @property
    def has_weights_to_fuse(self) -> bool:
        """Whether the layers have their weights.

        In a reload they may be on the meta device. On the CPU, post-load processing
        packs projections and leaves them empty.
        """
        return not any(
            param.is_meta or (param.numel() == 0 and name.endswith("_proj.weight"))
            for name, param in self.layers.named_parameters()
        )

    def refill_derived_tensors(self) -> None:
        """Fills the fused context buffers anew."""
        self._build_fused_kv_buffers()
