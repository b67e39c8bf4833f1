# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import replacing

from vllm.model_executor.utils import refill_derived


class Gemma4MTP:
    def _get_full_lm_head_weight(self) -> torch.Tensor:
        if self._stable_full_lm_head_weight is None:
            self.refill_derived_tensors()
        if self._stable_full_lm_head_weight is not None:
            return self._stable_full_lm_head_weight
        assert self.masked_embedding is not None
        return self.lm_head.weight[: self.masked_embedding.vocab_size]

    def refill_derived_tensors(self) -> None:
        """Gathers the full lm_head weight, where it is spread over ranks and read.

        A collective: every rank has to call it.
        """
        if self.masked_embedding is None or get_tensor_model_parallel_world_size() == 1:
            return
        weight = tensor_model_parallel_all_gather(self.lm_head.weight, dim=0)
        weight = weight[: self.masked_embedding.vocab_size].contiguous()
        refill_derived(self, "_stable_full_lm_head_weight", weight)

    def load_weights(self, weights):
        with replacing("self._stable_full_lm_head_weight = None"):
            pass
        with replacing("torch.tensor($$$)"):
            refill_derived(
                self,
                "_suppress_idx",
                torch.tensor(
                    self._suppress_token_ids,
                    dtype=torch.long,
                    device=next(self.parameters()).device,
                ),
            )
