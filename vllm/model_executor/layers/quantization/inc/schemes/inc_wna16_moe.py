# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import move_parameter, refill_derived


class INCARKWNA16MoEMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.w13_weight = layer.w13_qweight"):
            move_parameter(layer, "w13_qweight", "w13_weight")
        with replacing("layer.w2_weight = layer.w2_qweight"):
            move_parameter(layer, "w2_qweight", "w2_weight")
        with replacing("self.rows_per_expert = torch.empty($$$)"):
            self.rows_per_expert = refill_derived(
                self,
                "rows_per_expert",
                torch.zeros(
                    num_local_experts,
                    dtype=torch.int32,
                    device=layer.w13_weight.device,
                ),
            )
