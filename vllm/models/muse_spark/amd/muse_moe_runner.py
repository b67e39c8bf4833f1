# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import replace_parameter


class MuseSparkAiterExperts:
    def keep_constants(self, layer: torch.nn.Module) -> None:
        """Keeps the buffers of ones too, which forward passes make."""
        super().keep_constants(layer)
        self._unit_weights_bufs = vars(layer).setdefault(
            "_kept_unit_weights_bufs", self._unit_weights_bufs
        )


class MuseSparkOnlineMXFP4FusedMoE:
    def process_weights_after_loading(self, layer):
        with replacing("delattr(layer, name)"):
            # The source is four times as large: its storage is not to be kept.
            replace_parameter(layer, name, packed.new_empty(0))
        with replacing("layer.register_parameter(name, $$$)"):
            replace_parameter(layer, name, packed)
        with replacing('layer.register_parameter(f"{name}_scale", $$$)'):
            replace_parameter(layer, f"{name}_scale", scales)
