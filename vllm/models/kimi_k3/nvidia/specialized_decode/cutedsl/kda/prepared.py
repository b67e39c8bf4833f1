# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after


class PreparedKda:
    def __init__(self, attention, policies, conv_dim_first):
        with after("self.weights = $VALUES"):
            self.conv_source, self.norm_source = attention.conv1d, attention.o_norm

    def refill_derived_tensors(self) -> None:
        """Derives the conv weight and the float32 norm weight anew, in place."""
        conv, *_, norm = self.weights
        conv.copy_(decode_conv_weight(self.conv_source.weight))
        norm.copy_(self.norm_source.weight.detach())
