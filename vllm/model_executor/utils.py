# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import after, replacing


def replace_parameter(
    layer: torch.nn.Module,
    param_name: str,
    new_tensor: torch.Tensor | None,
) -> torch.nn.Parameter | None:
    """
    Returns:
        The parameter that the layer now has under ``param_name``: the existing object
        wherever it was kept, or None if ``new_tensor`` is None.
    """
    with replacing("return", inside="if new_tensor is None: $$$"):
        return None
    with replacing("return", follows="for $A in $B: setattr(old_param, $$$)"):
        return old_param
    with after("setattr(layer, param_name, new_param)"):
        return new_param
