# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import removed, replacing

from vllm.model_executor.layers.quantization.checkpoint_dequant import dequant_config
from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    RowDequantLoader,
)

# The checkpoint's names of the shards of the indexer's fused layer. It runs
# unquantized, whatever the checkpoint stores.
INDEXER_SHARDS = {"wk_weights_proj": ("wk", "weights_proj")}


class Indexer:
    def __init__(
        self,
        vllm_config,
        config,
        hidden_size,
        q_lora_rank,
        quant_config,
        cache_config,
        topk_indices_buffer,
        prefix="",
        is_inplace_rope=False,
    ):
        with replacing(
            "# FP8 wk weights are upcasted to BF16 during loading to maintain fusion."
        ):
            # Quantized wk weights are unpacked after loading, to maintain fusion.
            pass
        with replacing("None", inside="self.wk_weights_proj = $CALL($$$)"):
            dequant_config(quant_config, INDEXER_SHARDS)


class DeepseekV2Model:
    def load_weights(self, weights):
        with replacing("_pending_wk_fp8 = getattr($$$)"):
            indexer_loader = RowDequantLoader(self, INDEXER_SHARDS)
        with replacing("if _pending_wk_fp8 is None: $$$"):
            pass
        with replacing("pp_missing_layer_names = $VALUE"):
            pass
        with replacing("_try_load_fp8_indexer_wk($$$)"):
            indexer_loader.load(name, loaded_weight, name, loaded_params)


removed("_try_load_fp8_indexer_wk")
