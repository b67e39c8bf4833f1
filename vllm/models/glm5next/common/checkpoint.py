# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quantized checkpoints of GLM-5-next, whose attention runs in bfloat16."""

import torch
from transformers import Glm5NextTextConfig

from vllm.model_executor.layers.quantization import (
    QuantizationConfig,
    checkpoint_dequant,
)
from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    MissingRows,
    RowDequantLoader,
)
from vllm.model_executor.models.deepseek_v2 import INDEXER_SHARDS

SHARDS = {
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    **INDEXER_SHARDS,
}
"""The checkpoint's names of the shards of fused layers."""


def dequant_config(
    quant_config: QuantizationConfig | None,
) -> checkpoint_dequant.CheckpointDequantConfig | None:
    """The config for layers that run unquantized; see that of `checkpoint_dequant`."""
    return checkpoint_dequant.dequant_config(quant_config, SHARDS)


def kv_a_missing_rows(config: Glm5NextTextConfig) -> MissingRows:
    """The RoPE rows of `kv_a_proj_with_mqa`, which checkpoints without RoPE lack."""
    assert config.kv_lora_rank is not None
    missing = config.qk_rope_head_dim if config.mla_use_nope else 0
    return MissingRows(config.kv_lora_rank, missing)


def projection_loader(
    model: torch.nn.Module, config: Glm5NextTextConfig
) -> RowDequantLoader:
    """The loader of the layers that have a `dequant_config`.

    Args:
        model: The model whose `load_weights` it is.
        config: Of the text model.
    """
    missing_rows = {"kv_a_proj_with_mqa": kv_a_missing_rows(config)}
    return RowDequantLoader(model, SHARDS, missing_rows)


def is_head_of_draft(name: str) -> bool:
    """Whether a checkpoint tensor is the head of the draft, which is not loaded.

    The draft runs with the head of its target. Once it has it, a head that the
    checkpoint has for the draft would be loaded into that of the target.

    Args:
        name: Of the tensor.
    """
    return ".shared_head.head." in name
