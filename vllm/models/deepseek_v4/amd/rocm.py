# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived
from vllm.v1.attention.ops.rocm_aiter_mla_sparse import refill_wo_a_bf16


class DeepseekV4ROCMAiterMLAAttention:
    def __init__(self, *args, **kwargs):
        with replacing("self._fused_compressor_weight: torch.Tensor | None"):
            self._fused_compressor_weight: torch.Tensor | None = None
        with replacing('self.register_buffer("_fused_compressor_weight", $$$)'):
            pass

    def prepare_compressor_gemm_fusion(self):
        """Copies the two compressor weights into one, as often as it is called.

        They stay on their own storage, where loaders write to them.
        """
        with replacing("if self._fused_compressor_weight is not None: $$$"):
            pass
        with replacing("with torch.no_grad(): $$$"):
            pass
        with replacing("self._fused_compressor_weight = fused_weight"):
            refill_derived(self, "_fused_compressor_weight", fused_weight)

    def refill_derived_tensors(self) -> None:
        """Fills the fused compressor weight and the bf16 `wo_a` anew, once made."""
        if self._fused_compressor_weight is not None:
            self.prepare_compressor_gemm_fusion()
        refill_wo_a_bf16(self.wo_a)
