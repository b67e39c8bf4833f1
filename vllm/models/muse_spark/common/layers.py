# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing
from torch import nn

from vllm.model_executor.utils import refill_derived


class MuseSpark1xNormPreservingResidualConnection:
    def materialize_coefficients(self):
        """
        Plain attributes, so that a layerwise reload does not put old ones back. May
        run again: the tensors are kept and filled anew.
        """
        with replacing('self.register_buffer("beta", $$$)'):
            self.beta = refill_derived(self, "beta", beta.contiguous())
        with replacing('self.register_buffer("alpha", $$$)'):
            self.alpha = refill_derived(self, "alpha", alpha.contiguous())

    def refill_derived_tensors(self) -> None:
        """Derives alpha and beta from the gate, in float32."""
        self.materialize_coefficients()


def materialize_residual_path_constants(model: nn.Module) -> int:
    """Precompute parameter-only constants after weight loading; idempotent."""
    gates = [
        module
        for module in model.modules()
        if isinstance(module, MuseSpark1xNormPreservingResidualConnection)
    ]
    for gate in gates:
        gate.materialize_coefficients()
    return len(gates)
