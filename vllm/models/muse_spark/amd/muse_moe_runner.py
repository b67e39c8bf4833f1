# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import replace_parameter


class MuseSparkOnlineMXFP4FusedMoE:
    def process_weights_after_loading(self, layer):
        with replacing("delattr(layer, name)"):
            # The source is four times as large: its storage is not to be kept.
            replace_parameter(layer, name, packed.new_empty(0))
        with replacing("layer.register_parameter(name, $$$)"):
            replace_parameter(layer, name, packed)
        with replacing('layer.register_parameter(f"{name}_scale", $$$)'):
            replace_parameter(layer, f"{name}_scale", scales)
