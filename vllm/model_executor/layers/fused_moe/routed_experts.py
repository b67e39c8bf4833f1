# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import get_live_param


class RoutedExperts:
    def get_expert_weights(self):
        with replacing("list(self.named_parameters())"):
            [
                (name, param)
                for name, param in self.named_parameters()
                if self._moves_with_experts(name, param)
            ]

    def _moves_with_experts(self, name: str, param: torch.nn.Parameter) -> bool:
        """Whether expert load balancing may move a parameter.

        It moves what kernels read, each object once. A retired parameter moves along
        if it has a row for each local expert. Kernels do not read it, but processing
        does, again in each reload, and a reload that sends no new value must find the
        row of the expert that the slot holds now. A loader writes by the global number
        of the expert, so it finds the slot too.

        Args:
            name: Name of the parameter in this module.
            param: The parameter.
        """
        retired = name in self._parameters and get_live_param(self, name) is None
        return not retired or param.shape[:1] == (self.local_num_experts,)
