# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import after, removed
from torch import nn


class MuseSpark1xMoE:
    def __init__(self, vllm_config, layer_idx, prefix=""):
        with after("self.router = GateLinear($$$)"):
            self.router.weight.weight_loader = self._load_router_weight

    removed("fold_router_output_multiplier")

    def _load_router_weight(
        self, param: nn.Parameter, loaded_weight: torch.Tensor
    ) -> None:
        """Folds the router's output multiplier into its weight, once for each load."""
        self.router.weight_loader(param, loaded_weight)
        if self.router_output_multiplier is not None:
            with torch.no_grad():
                param.mul_(self.router_output_multiplier)
        self.moe_router.router_output_multiplier = None
