# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before, replacing

from vllm.model_executor.utils import move_parameter


class CompressedTensorsW4A8Int:
    def create_weights(
        self,
        layer,
        output_size,
        input_size,
        output_partition_sizes,
        input_size_per_partition,
        params_dtype,
        weight_loader,
        **kwargs,
    ):
        with replacing('layer.register_parameter("weight_packed", weight)'):
            pass

    def process_weights_after_loading(self, layer):
        with before("self.kernel.process_weights_after_loading(layer)"):
            move_parameter(layer, "weight", "weight_packed")
