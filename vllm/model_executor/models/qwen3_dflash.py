# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing
from torch import nn

from vllm.model_executor.utils import refill_derived


class DFlashQwen3Model:
    def _build_context_kv_buffers(self, layers_attn, has_bias):
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

    @property
    def has_context_kv_buffers(self) -> bool:
        """Whether the fused context buffers have been built, by a first load."""
        return hasattr(self, "_num_attn_layers")

    def refill_derived_tensors(self) -> None:
        """Fills the fused context buffers anew.

        Does nothing where post-load processing has packed the projections for the CPU
        and released their weights: what `load_weights` filled stays.
        """
        if not any(_has_released_weights(layer.self_attn) for layer in self.layers):
            self._build_fused_kv_buffers()


def _has_released_weights(attention: nn.Module) -> bool:
    return any(
        name.endswith("_proj.weight") and param.numel() == 0
        for name, param in attention.named_parameters()
    )
