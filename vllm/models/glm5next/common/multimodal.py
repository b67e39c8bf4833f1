# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    refuse_packed,
)


class Glm5NextVisionTransformer:
    def load_weights(self, weights):
        with replacing("return loader.load_weights($$$)"):
            mapped = self.hf_to_vllm_mapper.apply(weights)
            params = dict(self.named_parameters())
            return loader.load_weights(refuse_packed(mapped, params))
