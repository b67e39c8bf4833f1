# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, replacing

from vllm.model_executor.utils import (
    move_parameter,
    replace_parameter,
    retire_parameter,
)


class CompressedTensorsW4A8Int8MoEMethod:
    def create_weights(
        self,
        layer,
        num_experts,
        hidden_size,
        intermediate_size_per_partition,
        params_dtype,
        **extra_weight_attrs,
    ):
        with replacing(
            "# Placeholders for packed weights (will be replaced after packing)"
        ):
            # The packed weights take the place of the loaded ones, under both names.
            pass
        with replacing('layer.register_parameter("w13_weight_packed", $$$)'):
            pass
        with replacing("set_weight_attrs(layer.w13_weight_packed, $$$)"):
            pass
        with replacing('layer.register_parameter("w2_weight_packed", $$$)'):
            pass
        with replacing("set_weight_attrs(layer.w2_weight_packed, $$$)"):
            pass

    def process_weights_after_loading(self, layer):
        with replacing('replace_parameter(layer, "w13_weight_packed", $$$)'):
            replace_parameter(layer, "w13_weight", w13_packed)
        with replacing('replace_parameter(layer, "w2_weight_packed", $$$)'):
            replace_parameter(layer, "w2_weight", w2_packed)
        with replacing('replace_parameter(layer, "w13_weight", $$$)'):
            move_parameter(layer, "w13_weight", "w13_weight_packed")
        with replacing('replace_parameter(layer, "w2_weight", $$$)'):
            move_parameter(layer, "w2_weight", "w2_weight_packed")
        with replacing('replace_parameter(layer, "w13_weight_scale", $$$)'):
            # Packed into the weights, and kept to be loaded again.
            retire_parameter(layer, "w13_weight_scale")
        with replacing('replace_parameter(layer, "w2_weight_scale", $$$)'):
            retire_parameter(layer, "w2_weight_scale")
        with replacing('replace_parameter(layer, "w13_bias", $$$)'):
            retire_parameter(layer, "w13_bias")
        with replacing('replace_parameter(layer, "w2_bias", $$$)'):
            retire_parameter(layer, "w2_bias")
        with after("self.moe_kernel = make_w4a8_int8_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
