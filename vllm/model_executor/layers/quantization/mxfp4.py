# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight


class GptOssMxfp4MoEMethod:
    def _setup_kernel(
        self, layer, w13, w2, w13_scale, w2_scale, w13_bias=None, w2_bias=None
    ):
        with replacing("# that don't support .detach(). Manually assign parameters."):
            # that the layer has already, beside its parameters.
            pass
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)

    def get_fused_moe_quant_config(self, layer):
        with replacing(
            "# TRITON backends free w13/w2_weight_scale after swizzling; the"
        ):
            # TRITON backends swizzle w13/w2_weight_scale in place; the
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
        with replacing("# that don't support .detach(). Manually assign parameters."):
            # that the layer has already, beside its parameters.
            pass
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass

    def _setup_kernel_k3_situ_gfx942(self, layer):
        with replacing(
            "# Drop the source before returning. Packed int4 is the same size as"
        ):
            # Overwrite the source. Packed int4 is the same size as
            pass
        with replacing(
            "# Write chunks into a preallocated output. torch.cat of a list"
        ):
            # Write chunks where their sources were. torch.cat of a list
            pass
        with replacing("out_packed = torch.empty($$$)"):
            out_packed = weight.data.view(chunk_packed.dtype)
            assert out_packed.shape[1:] == chunk_packed.shape[1:]
        with replacing("weight.data = torch.empty($$$)"):
            pass
        with replacing("scale.data = torch.empty($$$)"):
            pass
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)

    def get_fused_moe_quant_config(self, layer):
        with replacing(
            "# TRITON backends free w13/w2_weight_scale after swizzling; the"
        ):
            # TRITON backends swizzle w13/w2_weight_scale in place; the
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

    def _build_moe_kernel(self, layer):
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
