# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch


def replace_parameter(
    mod: torch.nn.Module, name: str, new: torch.Tensor | torch.nn.Parameter
) -> torch.nn.Parameter | None:
    """As `vllm.model_executor.utils.replace_parameter`: there is one rule."""
    return executor_utils.replace_parameter(mod, name, new)
