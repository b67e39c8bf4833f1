# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight


class OnlineMoEMethodBase:
    def apply(
        self,
        layer,
        x,
        topk_weights,
        topk_ids,
        shared_experts,
        shared_experts_input,
    ):
        with replacing("layer.w13_weight"):
            triton_weight(layer, "w13_weight")
        with replacing("layer.w2_weight"):
            triton_weight(layer, "w2_weight")

    def apply_monolithic(self, layer, x, router_logits, input_ids=None):
        with replacing("layer.w13_weight"):
            triton_weight(layer, "w13_weight")
        with replacing("layer.w2_weight"):
            triton_weight(layer, "w2_weight")
