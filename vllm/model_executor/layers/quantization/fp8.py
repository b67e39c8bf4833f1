# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after

from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend


class Fp8LinearMethod:
    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return (
            self.block_quant
            and isinstance(self.fp8_linear, Fp8BlockScaledMMLinearKernel)
            and self.fp8_linear.keeps_loaded_values()
        )


class Fp8MoEMethod:
    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return (
            self.block_quant
            and not current_platform.is_fp8_fnuz()
            and self.fp8_backend
            in (
                Fp8MoeBackend.TRITON,
                Fp8MoeBackend.BATCHED_TRITON,
                Fp8MoeBackend.VLLM_CUTLASS,
                Fp8MoeBackend.BATCHED_VLLM_CUTLASS,
            )
        )

    def _init_moe_kernel(self, layer):
        with after("self.moe_kernel = make_fp8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
