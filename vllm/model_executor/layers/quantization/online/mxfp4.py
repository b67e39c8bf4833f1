# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from typing import TYPE_CHECKING

import torch
from series import after, replacing

if TYPE_CHECKING:
    from vllm.model_executor.layers.fused_moe import FusedMoEQuantConfig


class Mxfp4OnlineMoEMethod:
    def _setup_kernel(self, layer, w13, w2, w13_scale, w2_scale, w13_bias, w2_bias):
        with replacing("# Store on layer for apply(), scales are PrecisionConfig"):
            # The layer has them already, for apply(); scales are PrecisionConfig
            pass
        with replacing("layer.w13_weight = w13"):
            pass
        with replacing("layer.w2_weight = w2"):
            pass
        with after("self.moe_kernel = make_mxfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)

    def get_fused_moe_quant_config(
        self, layer: torch.nn.Module
    ) -> "FusedMoEQuantConfig | None":
        """The quantization config of the experts' kernel.

        Args:
            layer: Experts whose weights have been converted.
        """
        uses_triton_scales = (
            self.mxfp4_backend in TRITON_BACKENDS
            or self.mxfp4_backend == Mxfp4MoeBackend.AITER_MXFP4_FP8
        )
        if uses_triton_scales:
            w1_scale, w2_scale = self.w13_precision_config, self.w2_precision_config
        else:
            w1_scale = getattr(layer, f"w13_{self.weight_scale_name}")
            w2_scale = getattr(layer, f"w2_{self.weight_scale_name}")
        attributes = {
            "w1_bias": "w13_bias",
            "w2_bias": "w2_bias",
            "a1_scale": "w13_input_scale",
            "a2_scale": "w2_input_scale",
            "swiglu_limit": "swiglu_limit",
            "gemm1_alpha": "swiglu_alpha",
            "gemm1_beta": "swiglu_beta",
        }
        optional = {
            argument: getattr(layer, name, None)
            for argument, name in attributes.items()
        }
        return make_mxfp4_moe_quant_config(
            self.mxfp4_backend, w1_scale, w2_scale, **optional, layer=layer
        )
