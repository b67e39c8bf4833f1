# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class KimiLinearForCausalLM:
    def refill_derived_tensors(self) -> None:
        """Fills anew what the specialized decode packs, once it has been built."""
        if self.specialized_decode is not None:
            self.specialized_decode.refill_derived_tensors()
