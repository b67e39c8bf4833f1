# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from .weight_transfer import WeightTransferConfig


class VllmConfig:
    weight_transfer_config: WeightTransferConfig | None = None
    """How an RL trainer transfers weights: `backend`, such as `nccl` or `ipc`, and
    `reload_mode`, which is `layerwise` or `direct`."""
