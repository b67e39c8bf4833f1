# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import after, replacing


class PreparedDenseMLP:
    def __init__(self, mlp, batches, reduce=None):
        with after("gate_up, down = $VALUES"):
            self.mlp_down, self.padded_down = mlp.down_proj, None
        with replacing("down = torch.nn.functional.pad($$$)"):
            down = torch.nn.functional.pad(down.detach(), (0, padded - hidden))
            self.padded_down = down

    def refill_derived_tensors(self) -> None:
        """Copies the down projection into its padded form; the padding stays 0."""
        if self.padded_down is not None:
            columns = self.padded_down[:, : self.hidden]
            columns.copy_(self.mlp_down.weight.detach())
