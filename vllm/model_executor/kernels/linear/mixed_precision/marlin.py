# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import (
    refill_derived,
    replace_parameter,
    retire_parameter,
)


class MarlinLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing("setattr(layer, self.w_zp_name, marlin_make_empty(device))"):
            retire_parameter(layer, self.w_zp_name, missing_ok=True)
            self.no_zero_point = refill_derived(
                self, "no_zero_point", marlin_make_empty(device)
            )
        with replacing(
            'layer.register_parameter("input_global_scale", $$$)',
        ):
            replace_parameter(layer, "input_global_scale", input_global_scale)

    def apply_weights(self, layer, x, bias=None):
        with replacing("w_zp", inside="return apply_gptq_marlin_linear($$$)"):
            self.no_zero_point if w_zp is None else w_zp
