# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from vllm.platforms import current_platform


class Fp8BlockScaledMMLinearKernel:
    @classmethod
    def keeps_loaded_values(cls) -> bool:
        """Whether post-load processing leaves weight and scales as they were loaded."""
        return (
            cls.process_weights_after_loading
            is Fp8BlockScaledMMLinearKernel.process_weights_after_loading
            and not current_platform.is_fp8_fnuz()
        )
