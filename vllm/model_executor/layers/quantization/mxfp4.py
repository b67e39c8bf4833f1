# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight


class GptOssMxfp4MoEMethod:
    def _setup_kernel(
        self, layer, w13, w2, w13_scale, w2_scale, w13_bias=None, w2_bias=None
    ):
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass

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


class Mxfp4MoEMethod:
    def _setup_kernel(
        self, layer, w13, w2, w13_scale, w2_scale, w13_bias=None, w2_bias=None
    ):
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass

    def _setup_kernel_k3_situ_gfx942(self, layer):
        """Converts each chunk into the weight's own storage, which it fills."""
        with replacing("out_packed = torch.empty($$$)"):
            out_packed = weight.data.view(chunk_packed.dtype)
            assert out_packed.shape[1:] == chunk_packed.shape[1:]
        with replacing("weight.data = torch.empty($$$)"):
            pass
        with replacing("scale.data = torch.empty($$$)"):
            pass

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
