# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from vllm.v1.attention.ops.rocm_aiter_mla_sparse import refill_wo_a_bf16


class DeepseekV41ROCMAiterMLAAttention:
    def refill_derived_tensors(self) -> None:
        """Fills the bf16 copy of `wo_a` anew, once a forward pass has made it."""
        refill_wo_a_bf16(self.wo_a)
