# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import (
    move_parameter,
    refill_derived,
    replace_parameter,
    retire_parameter,
)


class CompressedTensorsWNA8O8Int:
    def process_weights_after_loading(self, layer):
        with replacing(
            'self._input_scale = self._take_act_scale(layer, "input_scale")'
        ):
            self._keep_act_scale(layer, "input_scale")
        with replacing(
            'self._output_scale = self._take_act_scale(layer, "output_scale")'
        ):
            self._keep_act_scale(layer, "output_scale")

    def _keep_act_scale(self, layer: torch.nn.Module, name: str) -> None:
        scale = self._take_act_scale(layer, name)
        if scale is None:
            setattr(self, f"_{name}", None)
        else:
            refill_derived(self, f"_{name}", scale)

    def _pack_int_quantized_weight(self, layer):
        with replacing('delattr(layer, "weight")'):
            # Kernels ask the packed weight how it is packed.
            packed.packed_dim = 1
            packed.packed_factor = self.pack_factor
            replace_parameter(layer, "weight", packed)
            move_parameter(layer, "weight", "weight_packed")
        with replacing("def _noop_loader($$$): $$$"):
            pass
        with replacing('layer.register_parameter("weight_packed", $$$)'):
            pass
        with replacing('layer.register_parameter("weight_shape", $$$)'):
            replace_parameter(
                layer, "weight_shape", torch.tensor([out_features, in_features])
            )

    @staticmethod
    def _take_act_scale(layer, name):
        with replacing("delattr(layer, name)"):
            retire_parameter(layer, name)
