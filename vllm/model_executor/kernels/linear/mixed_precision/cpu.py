# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import replace_parameter, retire_parameter

_EIGHT_IN_EACH_NIBBLE = 0x88888888 - 2**32


class CPUWNA16LinearKernel:
    neutral_zero_point: torch.Tensor | None = None
    """What a W4A8 layer without zero points passes for them, packed, int32."""

    def _process_gptq_weights_w4a16(self, layer):
        with replacing("getattr(layer, self.w_q_name).data = weight"):
            replace_parameter(layer, self.w_q_name, weight)

    def _process_gptq_weights_w4a8(self, layer):
        with replacing("replace_parameter(layer, self.w_zp_name, $$$)"):
            pass
        with replacing(
            "getattr(layer, self.w_zp_name)",
            follows="replace_parameter(layer, self.w_zp_name, $$$)",
        ):
            torch.full(
                (group_num, zp_output_size), _EIGHT_IN_EACH_NIBBLE, dtype=torch.int32
            )
        with replacing("packed_weight.data = blocked_w"):
            replace_parameter(layer, self.w_q_name, blocked_w)
        with replacing("scales.data = blocked_s"):
            replace_parameter(layer, self.w_s_name, blocked_s)
        with replacing("packed_zp.data = blocked_zp"):
            if self.config.zero_points:
                replace_parameter(layer, self.w_zp_name, blocked_zp)
            elif self.neutral_zero_point is None:
                self.neutral_zero_point = blocked_zp

    def process_weights_after_loading(self, layer):
        with replacing("setattr(layer, self.w_zp_name, None)"):
            retire_parameter(layer, self.w_zp_name, missing_ok=True)
        with replacing("scales.data = scales.t().contiguous()"):
            replace_parameter(layer, self.w_s_name, scales.t().contiguous())
        with replacing("zp.data = zp.t().contiguous()"):
            replace_parameter(layer, self.w_zp_name, zp.t().contiguous())

    def _get_weight_params(
        self, layer: torch.nn.Module
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        w_q, w_s, w_zp = super()._get_weight_params(layer)
        return w_q, w_s, self.neutral_zero_point if w_zp is None else w_zp
