# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch

from vllm.model_executor.utils import refill_derived


class TrtLlmMxfp4LoRAExperts:
    def keep_constants(self, layer: torch.nn.Module) -> None:
        """Keeps the columns of the bias too, which the first use would make anew."""
        super().keep_constants(layer)
        if self.w1_bias is not None:
            self._w13_bias_up_gate_index = refill_derived(
                layer, "_kept_w13_bias_up_gate_index", self._w13_bias_up_gate_index
            )
