# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived


class GateLinear:
    def __init__(
        self,
        input_size,
        output_size,
        bias=False,
        out_dtype=None,
        params_dtype=None,
        force_fp32_compute=False,
        skip_bias_add=False,
        quant_config=None,
        prefix="",
        return_bias=True,
    ):
        with replacing('self.register_buffer("_bf16x3_weight", $$$)'):
            # A buffer would be in the way of the one that a reload puts back.
            self._bf16x3_weight: torch.Tensor | None = None


class _GateLinearMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer._bf16x3_weight = $VALUE"):
            refill_derived(
                layer,
                "_bf16x3_weight",
                bf16x3_router_gemm_rocm.split_bf16x3(layer.weight),
            )
