# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class UnquantizedLinearMethod:
    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return True
