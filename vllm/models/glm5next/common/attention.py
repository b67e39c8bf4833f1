# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after, replacing

from vllm.model_executor.utils import refill_derived

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

    def forward(self, hidden_states, qr, positions, rotary_emb):
        with replacing("self._wp_fp32 = $VALUE"):
            self.refill_derived_tensors()

    def refill_derived_tensors(self) -> None:
        """Derives the head gate, ``[hidden, n_head]`` in float32, from its weight."""
        weight = self.wk_weights_proj.weight.data[self.head_dim :, :]
        refill_derived(self, "_wp_fp32", weight.t().contiguous().float())


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
