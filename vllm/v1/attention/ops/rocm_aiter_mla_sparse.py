# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch

from vllm.model_executor.utils import refill_derived

_WO_A_BF16 = "_dsv4_wo_a_bf16"


def refill_wo_a_bf16(wo_a: torch.nn.Module) -> None:
    """Dequantizes the weight again into the bf16 copy that the first forward pass made.

    Captured graphs read that copy. Without one nothing is done.

    Args:
        wo_a: Output projection of an attention layer, in kernel format.
    """
    held = vars(wo_a).pop(_WO_A_BF16, None)
    if held is None:
        return
    made = _get_cached_wo_a_bf16(wo_a, *held.shape)
    setattr(wo_a, _WO_A_BF16, held)
    refill_derived(wo_a, _WO_A_BF16, made)
