# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before, replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    RowDequantLoader,
)

from .deepseek_v2 import INDEXER_SHARDS


class DeepSeekMTP:
    def load_weights(self, weights):
        with replacing(
            "# Reordering loaders (e.g. runai_streamer) can split an FP8 indexer wk"
        ):
            pass
        with replacing(
            "# weight/scale pair across load_weights() calls; keep the pending"
        ):
            pass
        with replacing("# buffer on the model so pairs survive the call boundary."):
            pass
        with replacing("_pending_wk_fp8 = getattr($$$)"):
            indexer_loader = RowDequantLoader(self, INDEXER_SHARDS)
        with replacing("if _pending_wk_fp8 is None: $$$"):
            pass
        with replacing("pp_missing_layer_names = $VALUE"):
            pass
        with before("name = self._rewrite_spec_layer_name($$$)"):
            checkpoint_name = name
        with replacing("_try_load_fp8_indexer_wk($$$)"):
            indexer_loader.load(name, loaded_weight, checkpoint_name, loaded_params)
