# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.utils import refill_derived


class Indexer:
    def forward(self, hidden_states, qr, positions, rotary_emb):
        with replacing("self._wp_fp32 = $VALUE"):
            self.refill_derived_tensors()

    def refill_derived_tensors(self) -> None:
        """Derives the head gate, ``[hidden, n_head]`` in float32, from its weight."""
        weight = self.wk_weights_proj.weight.data[self.head_dim :, :]
        refill_derived(self, "_wp_fp32", weight.t().contiguous().float())
