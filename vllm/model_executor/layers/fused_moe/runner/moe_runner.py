# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived


class MoERunner:
    def _maybe_fuse_gate_weights(self):
        with replacing("if self._combined_gate_weight is None: $$$"):
            if self._combined_gate_weight is None:
                self.refill_derived_tensors()

    def refill_derived_tensors(self) -> None:
        """Fuses the weights of the router and of the shared expert's gate."""
        if self._fse_fuse_gate:
            assert self.gate is not None and self.shared_expert_gate is not None
            weights = [self.gate.weight, self.shared_expert_gate.weight]
            refill_derived(self, "_combined_gate_weight", torch.cat(weights, dim=0))
