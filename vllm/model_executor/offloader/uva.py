# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
import torch.nn as nn
from series import replacing


class UVAOffloader:
    def _maybe_offload_to_cpu(self, module, prefix=""):
        with replacing("module.state_dict()"):
            _state_on(module, device)


def _state_on(module: nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
    """The module's state on a device: each tensor once, under all of its names."""
    state = module.state_dict(keep_vars=True)
    tensors = {id(tensor): tensor.detach() for tensor in state.values()}
    moved = {key: tensors[key].to(device, non_blocking=True) for key in tensors}
    return {name: moved[id(tensor)] for name, tensor in state.items()}
