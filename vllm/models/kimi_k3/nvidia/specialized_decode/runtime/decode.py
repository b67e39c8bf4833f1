# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after

from ..cutedsl.kda.prepared import PreparedKda
from ..cutedsl.moe.dense import PreparedDenseMLP


class SpecializedDecode:
    def build_providers(self):
        with after("packed = $FRONTS"):
            self.packed_fronts = packed

    def refill_derived_tensors(self) -> None:
        """Packs the weights anew, into the tensors that kernels and graphs hold.

        Call it at the end of a reload, outside of graph capture. Host numbers that
        kernels took at build time, as MLA's KV-cache scales, stay as they were.
        """
        for layer in self.layers:
            index = layer.layer_idx
            if index in self.packed_fronts:
                front = pack_front(layer.mlp, self.rank, self.tp)
                self.packed_fronts[index].copy_(front)
            for prepared in (self.attention[index].core, self.feed_forward[index]):
                if isinstance(prepared, (PreparedKda, PreparedDenseMLP)):
                    prepared.refill_derived_tensors()
