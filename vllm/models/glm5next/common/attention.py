# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after, replacing

from .checkpoint import dequant_config


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
            "# FP8 wk weights are upcasted to BF16 during loading to maintain fusion."
        ):
            # Quantized wk weights are unpacked after loading, to maintain fusion.
            pass
        with replacing("None", inside="self.wk_weights_proj = $CALL($$$)"):
            quant_config


class Glm5NextMLAAttention:
    def __init__(
        self,
        vllm_config,
        config,
        hidden_size,
        num_heads,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        q_lora_rank,
        kv_lora_rank,
        max_position_embeddings=8192,
        cache_config=None,
        quant_config=None,
        prefix="",
        topk_indices_buffer=None,
        input_size=None,
        skip_rope=False,
    ):
        with after("super().__init__()"):
            # The linear layers are unpacked after loading. How they are stored says
            # nothing about the KV cache.
            attention_config = quant_config
            quant_config = dequant_config(vllm_config.quant_config)
        with replacing("quant_config", inside="self.mla_attn = $CALL($$$)"):
            attention_config
