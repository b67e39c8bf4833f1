# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.utils import refill_derived


class MusePostExpertFinalize:
    def refill_weight(self) -> None:
        """Casts the norm's weight anew, if a forward pass has asked for the cast."""
        held = self._fused_weight
        if held is None:
            return
        self._fused_weight = None
        try:
            cast = self._effective_weight(held.dtype, held.device)
        finally:
            self._fused_weight = held
        refill_derived(self, "_fused_weight", cast)


class _MuseSparkNvFp4Scales:
    def process_weights_after_loading(self, layer):
        with replacing('layer.register_parameter("g1_scale_c", $$$)'):
            # What `quant_config` has is kept on the layer: the parameter lies there.
            replace_parameter(layer, "g1_scale_c", self._compute_g1_scale_c())


class MuseSparkModelOptNvFp4FusedMoE:
    def process_weights_after_loading(self, layer):
        with replacing("(a13 * w13_weight_scale_2[:, 0]).contiguous()"):
            refill_derived(layer, "_g1_alphas", a13 * w13_weight_scale_2[:, 0])
        with replacing("(a13 * w13_weight_scale_2[:, 1] / a2).contiguous()"):
            refill_derived(layer, "_g1_scale_c", a13 * w13_weight_scale_2[:, 1] / a2)
        with replacing("(a2 * layer.w2_weight_scale_2.data).contiguous()"):
            refill_derived(layer, "_g2_alphas", a2 * layer.w2_weight_scale_2.data)
        with replacing("nvfp4_moe_quant_config($$$)"):
            nvfp4_moe_quant_config(
                g1_alphas=g1_alphas,
                g2_alphas=g2_alphas,
                a1_gscale=refill_derived(layer, "_a1_gscale", 1.0 / a13),
                a2_gscale=refill_derived(layer, "_a2_gscale", 1.0 / a2),
                w1_scale=layer.w13_weight_scale,
                w2_scale=layer.w2_weight_scale,
                # The TRT-LLM kernel rejects swizzled activation scale factors.
                is_scale_swizzled=False,
            )

    def _process_hopper_marlin_weights(self, layer):
        with replacing("make_nvfp4_moe_quant_config($$$)"):
            # The parameters, and no second copy of them.
            make_nvfp4_moe_quant_config(
                backend=NvFp4MoeBackend.MARLIN,
                w13_scale=layer.w13_weight_scale,
                w2_scale=layer.w2_weight_scale,
                w13_scale_2=layer.w13_weight_scale_2,
                w2_scale_2=layer.w2_weight_scale_2,
                a13_scale=layer.w13_input_scale,
                a2_scale=layer.w2_input_scale,
            )


class MuseMoERunner:
    def refill_derived_tensors(self) -> None:
        """Fills the norm weight of the finalization anew, and what is the base's."""
        super().refill_derived_tensors()
        self.post_expert_finalize.refill_weight()
