# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import refill_derived


class B12xExperts:
    def _refresh_quant_config(self, layer):
        with replacing("1.0 / layer.w13_input_scale"):
            refill_derived(layer, "_a1_gscale", 1.0 / layer.w13_input_scale)
        with replacing("1.0 / layer.w2_input_scale"):
            refill_derived(layer, "_a2_gscale", 1.0 / layer.w2_input_scale)
