# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import refill_derived, replace_parameter


class FlashInferB12xExperts:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight_scale.data = $SCALED"):
            _fold_global_scale(layer, "w13")
        with replacing("layer.w2_weight_scale.data = $SCALED"):
            _fold_global_scale(layer, "w2")
        with replacing("torch.ones($$$)"):
            refill_derived(
                layer,
                "_fc2_input_scale",
                torch.ones(
                    self.num_local_experts,
                    device=layer.w13_weight.device,
                    dtype=torch.float32,
                ),
            )


def _fold_global_scale(layer: torch.nn.Module, prefix: str) -> None:
    """Multiplies the experts' global scales into their block scales.

    In place: the scales in MMA layout, which the kernel reads, are views of these.

    Args:
        layer: Layer that has the parameters.
        prefix: ``"w13"`` or ``"w2"``.
    """
    name = f"{prefix}_weight_scale"
    scale = getattr(layer, name)
    global_scale = getattr(layer, f"{name}_2").view(-1, 1, 1)
    replace_parameter(layer, name, (scale.float() * global_scale).to(scale.dtype))
