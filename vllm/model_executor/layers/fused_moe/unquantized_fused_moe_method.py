# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class UnquantizedFusedMoEMethod:
    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return self.unquantized_backend in (
            UnquantizedMoeBackend.TRITON,
            UnquantizedMoeBackend.BATCHED_TRITON,
        )
