# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from functools import cache

import torch
from series import replacing


@cache
def _expert_ids(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Global ids of a rank's experts, one tensor in the life of the process.

    A reload makes another prepare-finalize object, and captured graphs read the ids.
    """
    return torch.arange(first, first + count, dtype=torch.int64, device=device)


class DeepEPV2PrepareAndFinalize:
    def _global_expert_ids(self, num_local, device):
        with replacing("torch.arange($$$) + self.rank_expert_offset"):
            _expert_ids(self.rank_expert_offset, num_local, device)
