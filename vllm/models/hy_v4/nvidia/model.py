# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    RowDequantLoader,
)
from vllm.model_executor.models.deepseek_v2 import INDEXER_SHARDS


class HYV4Model:
    def load_weights(self, weights):
        with replacing(
            "# FP8 indexer wk dequant buffer (weight and scale arrive separately)."
        ):
            pass
        with replacing("pending_wk_fp8: dict[str, dict[str, torch.Tensor]] = {}"):
            indexer_loader = RowDequantLoader(self, INDEXER_SHARDS)
        with replacing("pp_missing_layer_names = $VALUE"):
            pass
        with replacing("_try_load_fp8_indexer_wk($$$)"):
            indexer_loader.load(name, loaded_weight, name, loaded_params)
