# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import removed, replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight


class DeepseekV4HeterogeneousSharedRoutedExperts:
    def forward_modular(
        self, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None
    ):
        with replacing(
            "self.w13_weight", inside="if _use_heterogeneous_fhmoe($$$): $$$"
        ):
            triton_weight(self, "w13_weight")
        with replacing(
            "self.w13_weight", outside="if _use_heterogeneous_fhmoe($$$): $$$"
        ):
            triton_weight(self, "w13_weight")
        with replacing(
            "self.w2_weight", inside="if _use_heterogeneous_fhmoe($$$): $$$"
        ):
            triton_weight(self, "w2_weight")
        with replacing(
            "self.w2_weight", outside="if _use_heterogeneous_fhmoe($$$): $$$"
        ):
            triton_weight(self, "w2_weight")


class DeepseekV4ForCausalLM:
    removed("finalizes_weights_during_load")
