# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import move_parameter, refill_derived


class HummingNvFp4LinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing('if not hasattr(layer, "weight_packed"): $$$'):
            move_parameter(layer, "weight", "weight_packed")
        with replacing('replace_parameter(layer, "weight_global_scale", $$$)'):
            overrides = {"weight_global_scale": 1.0 / layer.weight_global_scale}
        with replacing('replace_parameter(layer, "input_scale_2", $$$)'):
            overrides["input_scale_2"] = layer.input_global_scale.reshape(-1)
        with replacing("prepare_humming_linear_layer_config($$$)"):
            prepare_humming_linear_layer_config(
                layer, quant_config, input_schema=input_schema, overrides=overrides
            )
        with replacing("create_humming_locks(layer.weight.device)"):
            refill_derived(self, "locks", create_humming_locks(layer.weight.device))
