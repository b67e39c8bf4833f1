# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import before, replacing

from vllm.model_executor.utils import refill_derived


class LiLiCorrHead:
    def materialize_inference_buffers(self, device, dtype):
        """
        May run again: the tensors are kept and filled anew.
        """
        with before("topk = self.candidate_topk"):
            # Still to come, in a reload of several calls; or packed and released.
            released = self.out_head.weight.numel() == 0
            if released or any(param.is_meta for param in self.parameters()):
                return
        with replacing("self._build_attention_bias(device=device, dtype=dtype)"):
            refill_derived(
                self,
                "_attn_bias",
                self._build_attention_bias(device=device, dtype=dtype),
            )
        with replacing("self._fused_edge_weight = $VALUE"):
            edge_weight = torch.cat([self.out_head.weight, self.in_head.weight], dim=0)
            self._fused_edge_weight = refill_derived(
                self,
                "_fused_edge_weight",
                edge_weight.to(device=device, dtype=dtype).contiguous(),
            )
        with replacing("self._fused_edge_bias = $VALUE"):
            edge_bias = torch.cat([self.out_head.bias, self.in_head.bias], dim=0)
            self._fused_edge_bias = refill_derived(
                self,
                "_fused_edge_bias",
                edge_bias.to(device=device, dtype=dtype).contiguous(),
            )
        with replacing("self._factor_input_splits = $VALUE"):
            splits = (
                weight[:, :hdim],
                weight[:, hdim : 2 * hdim],
                weight[:, 2 * hdim :],
            )
            self._factor_input_splits = tuple(
                refill_derived(self, f"_factor_input_split_{i}", split.contiguous())
                for i, split in enumerate(splits)
            )
        with replacing("rank_frac.contiguous()"):
            refill_derived(self, "_rank_frac_col", rank_frac.contiguous())
        with replacing("is_top1.contiguous()"):
            refill_derived(self, "_is_top1_col", is_top1.contiguous())

    def refill_derived_tensors(self) -> None:
        """Fills the inference buffers anew."""
        parameter = self.slot_embedding
        self.materialize_inference_buffers(parameter.device, parameter.dtype)
