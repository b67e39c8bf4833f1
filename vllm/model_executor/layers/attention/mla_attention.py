# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.utils.packed_rows import runtime_weight


class MLAAttention:
    def __init__(
        self,
        num_heads,
        scale,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        q_lora_rank,
        kv_lora_rank,
        kv_b_proj,
        dcp_q_replicate=False,
        cache_config=None,
        quant_config=None,
        prefix="",
        attn_backend=None,
        use_sparse=False,
        indexer=None,
        topk_indices_buffer=None,
        index_group_builder=None,
        non_causal_multi_token_decode=False,
        sliding_window=None,
        prefill_backend_cls=None,
        **extra_impl_args,
    ):
        with replacing("self.kv_b_proj.weight.dtype"):
            runtime_weight(self.kv_b_proj).dtype
