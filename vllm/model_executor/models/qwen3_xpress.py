# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
import torch.nn as nn
from series import after, before, replacing

from vllm.model_executor.utils import set_weight_attrs


class XPressRefinerHead:
    def __init__(
        self,
        vocab_size,
        hidden_size,
        block_size,
        rank=256,
        mlp_hidden=512,
        max_num_reqs=256,
        topc=512,
    ):
        with after("self.mix_L = $VALUE"):
            set_weight_attrs(self.mix_L, {"weight_loader": self.load_raw_mixer})

    def fold_from_raw_(self, raw_L, param: nn.Parameter | None = None):
        with replacing("self.mix_L"):
            (self.mix_L if param is None else param)

    def load_raw_mixer(self, param: nn.Parameter, raw_L: torch.Tensor) -> None:
        """Loads the mixer as a checkpoint has it, raw, into its folded form."""
        self.fold_from_raw_(raw_L.to(param.dtype), param)

    def build_fused_buffers(self):
        """
        May run again: the buffers are kept and filled anew.
        """
        with before("r = self.rank"):
            held = self._fused_buf
        with after("self._fused_buf = $BUFFERS"):
            if held is not None:
                for name, buffer in self._fused_buf.items():
                    if not buffer.is_meta:
                        held[name].copy_(buffer)
                self._fused_buf = held

    def refill_derived_tensors(self) -> None:
        """Fills the buffers of the fused kernels anew."""
        self.build_fused_buffers()


class Qwen3XPressForCausalLM:
    def load_weights(self, weights):
        with replacing("self.model.xpress_head.fold_from_raw_($$$)"):
            mixer = self.model.xpress_head.mix_L
            mixer.weight_loader(mixer, raw_mix_L)
