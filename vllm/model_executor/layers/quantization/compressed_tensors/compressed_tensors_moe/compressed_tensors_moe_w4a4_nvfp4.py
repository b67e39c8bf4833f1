# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import after, replacing

from vllm.model_executor.utils import move_parameter, refill_derived


class CompressedTensorsW4A4Nvfp4MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight = $PARAMETER"):
            move_parameter(layer, "w13_weight_packed", "w13_weight")
        with replacing('delattr(layer, "w13_weight_packed")'):
            pass
        with replacing("layer.w2_weight = $PARAMETER"):
            move_parameter(layer, "w2_weight_packed", "w2_weight")
        with replacing('delattr(layer, "w2_weight_packed")'):
            pass
        with replacing("layer.w13_input_scale = a13_scale"):
            _keep_input_scale(layer, "w13_input_scale", a13_scale)
        with replacing("layer.w2_input_scale = a2_scale"):
            _keep_input_scale(layer, "w2_input_scale", a2_scale)
        with after("self.moe_kernel = make_nvfp4_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)


def _keep_input_scale(
    layer: torch.nn.Module, name: str, scale: torch.Tensor | None
) -> None:
    """Sets an input scale in place; None where the kernel does not read one."""
    if scale is None:
        setattr(layer, name, None)
    else:
        refill_derived(layer, name, scale)
