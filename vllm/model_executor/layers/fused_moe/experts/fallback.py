# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch


class FallbackExperts:
    def keep_constants(self, layer: torch.nn.Module) -> None:
        self.experts.keep_constants(layer)
        self.fallback_experts.keep_constants(layer)
