# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
import torch.nn as nn
from series import after, replacing


def set_default_quant_scales(layer: nn.Module, register_buffer: bool = False) -> None:
    with after('layer.register_buffer("_prob_scale", $VALUE)'):
        # Host tensors, whatever device the model is built on.
        layer._k_scale_cpu = torch.tensor(1.0, dtype=torch.float32, device="cpu")
        layer._v_scale_cpu = torch.tensor(1.0, dtype=torch.float32, device="cpu")
    with after("layer._prob_scale.fill_(1.0)"):
        layer._k_scale_cpu.fill_(1.0)
        layer._v_scale_cpu.fill_(1.0)
    with replacing("layer._k_scale_cpu = $VALUE"):
        pass
    with replacing("layer._v_scale_cpu = $VALUE"):
        pass
