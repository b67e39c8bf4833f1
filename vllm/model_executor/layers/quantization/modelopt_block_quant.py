# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before, replacing

from vllm.utils.b12x import reuse_packed_weight_storage


class ModelOptBlockQuantLinearMethod:
    def process_weights_after_loading(self, layer):
        with replacing("layer.b12x_block_weight = packed"):
            layer.b12x_block_weight = reuse_packed_weight_storage(
                getattr(layer, "b12x_block_weight", None), packed
            )


class ModelOptBlockQuantMoEMethod:
    def process_weights_after_loading(self, layer):
        with before("experts.process_weights_after_loading(layer)"):
            experts.keep_constants(layer)
