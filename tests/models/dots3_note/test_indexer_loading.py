# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The indexer of dots3 loads tensor by tensor."""

from pathlib import Path

import pytest

from tests.models.indexer_tests import IndexerTests
from tests.models.tiny_indexer import IndexerModel, outcomes
from tests.stock_vllm import run_on_stock

pytestmark = pytest.mark.usefixtures("indexer_models")

SIZES = {
    "swa_num_attention_heads": 4,
    "swa_q_lora_rank": 64,
    "swa_kv_lora_rank": 64,
    "swa_qk_nope_head_dim": 64,
    "swa_qk_rope_head_dim": 64,
    "swa_v_head_dim": 64,
    "sliding_window_size": 128,
}
CONFIG = {
    "architectures": ["Dots3NoteForCausalLM"],
    "model_type": "dots3_note",
    "layer_types": ["full_attention"],
    "attention_gate_type": "headwise",
    "swa_attention_gate_type": "headwise",
    "swa_rope_theta": 10000.0,
    "apply_mla_qkv_lora_rescale": False,
    **SIZES,
}
LANGUAGE_MODEL = IndexerModel(
    "vllm.models.dots3_note.nvidia.model:Dots3NoteLanguageModelForCausalLM", CONFIG
)


@pytest.fixture
def model() -> IndexerModel:
    """The draft has no indexer: its layers have sliding attention."""
    return LANGUAGE_MODEL


class TestIndexer(IndexerTests):
    pass


def test_stock_refuses_a_pair_that_comes_in_two_calls(stock_tree: Path):
    found = run_on_stock(stock_tree, outcomes, [LANGUAGE_MODEL])

    refused = "ValueError: Incomplete FP8 indexer weights: layers.0.self_attn.indexer"
    assert found[str(LANGUAGE_MODEL)].startswith(refused)
