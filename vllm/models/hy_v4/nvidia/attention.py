# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.checkpoint_dequant import dequant_config
from vllm.model_executor.models.deepseek_v2 import INDEXER_SHARDS


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
    ):
        with replacing(
            "# FP8 wk weights are upcast to BF16 while loading to keep the fusion."
        ):
            # Quantized wk weights are unpacked after loading, to keep the fusion.
            pass
        with replacing("None", inside="self.wk_weights_proj = $CALL($$$)"):
            dequant_config(quant_config, INDEXER_SHARDS)
