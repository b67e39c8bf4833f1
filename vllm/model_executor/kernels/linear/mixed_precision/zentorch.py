# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import (
    get_live_param,
    move_parameter,
    replace_parameter,
    retire_parameter,
)


class ZentorchWNA16LinearKernel:
    def _maybe_process_da8w4_weights(self, layer):
        with replacing("setattr(layer, self.w_zp_name, None)"):
            retire_parameter(layer, self.w_zp_name, missing_ok=True)
        with replacing("layer._zentorch_da8w4_packed"):
            packed
        with replacing("layer._zentorch_da8w4_scale"):
            scale
        with replacing("for param_name in $NAMES: $$$"):
            self._hold(layer, self.w_q_name, packed, "_zentorch_da8w4_packed")
            self._hold(layer, self.w_s_name, scale, "_zentorch_da8w4_scale")

    def process_weights_after_loading(self, layer):
        with replacing('if getattr(layer, "_zentorch_processed_weights", False): $$$'):
            pass
        with replacing("setattr(layer, self.w_zp_name, None)"):
            retire_parameter(layer, self.w_zp_name, missing_ok=True)
        with replacing("getattr(layer, self.w_zp_name, None) if $NAMED else None"):
            get_live_param(layer, self.w_zp_name or "")
        with replacing("layer._zentorch_woq_packed = repacked.t()"):
            pass
        with replacing("layer._zentorch_woq_scale = $VALUE"):
            scale = weight_scale.t().contiguous()
        with replacing("layer._zentorch_woq_zero_point = zp_tc"):
            pass
        with replacing("for param_name in $NAMES: $$$"):
            self._hold(layer, self.w_q_name, repacked.t(), "_zentorch_woq_packed")
            self._hold(layer, self.w_s_name, scale, "_zentorch_woq_scale")
            if zp_tc is None:
                layer._zentorch_woq_zero_point = None
            else:
                assert self.w_zp_name is not None
                self._hold(layer, self.w_zp_name, zp_tc, "_zentorch_woq_zero_point")

    @staticmethod
    def _hold(
        layer: torch.nn.Module, name: str, tensor: torch.Tensor, runtime_name: str
    ) -> None:
        """Puts what the kernel reads into the parameter that it was made of."""
        replace_parameter(layer, name, tensor)
        move_parameter(layer, name, runtime_name)
