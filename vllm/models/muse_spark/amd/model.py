# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import removed, replacing

from vllm.model_executor.utils import refill_derived


class MuseSpark1xMoE:
    def __init__(self, vllm_config, layer_idx, prefix=""):
        with replacing("self._router_multiplier_folded = False"):
            pass

    removed("fold_router_output_multiplier")

    def _load_router_weight(self, param, loaded_weight):
        """Folds the router's output multiplier into its weight, once for each load."""
        with replacing("self._router_multiplier_folded = False"):
            if self.router_output_multiplier is not None:
                with torch.no_grad():
                    param.mul_(self.router_output_multiplier)
            self.moe_router.router_output_multiplier = None

    def refill_derived_tensors(self) -> None:
        """Splits the router weight into bf16x3 planes, where the device takes them."""
        weight = self.router.weight.data
        fits = weight.dtype == torch.float32 and supports_router_bf16x3(*weight.shape)
        if fits and _supports_router_bf16x3_device():
            planes = split_fp32_to_bf16x3(weight.contiguous())
            refill_derived(self, "_router_planes", planes)
