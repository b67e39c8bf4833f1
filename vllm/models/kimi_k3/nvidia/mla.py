# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived


class MultiHeadLatentAttention:
    def process_weights_after_loading(self, act_dtype):
        with replacing('self.register_buffer("_q_scale_inv", $$$)'):
            _keep_inverse(self, "_q_scale")
        with replacing('self.register_buffer("_k_scale_inv", $$$)'):
            _keep_inverse(self, "_k_scale")


def _keep_inverse(layer: torch.nn.Module, name: str) -> None:
    """Registers the reciprocal of a scale as a buffer, or fills the one there is."""
    inverse = getattr(layer, name).reciprocal().reshape(1)
    if f"{name}_inv" in layer._buffers:
        refill_derived(layer, f"{name}_inv", inverse)
    else:
        layer.register_buffer(f"{name}_inv", inverse, persistent=False)
