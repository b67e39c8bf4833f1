# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The indexer of HY-V4 loads tensor by tensor."""

from pathlib import Path

import pytest

from tests.models.indexer_tests import IndexerTests
from tests.models.tiny_indexer import IndexerModel, outcomes
from tests.stock_vllm import run_on_stock

pytestmark = pytest.mark.usefixtures("indexer_models")

CONFIG = {
    "architectures": ["HYV4ForCausalLM"],
    "model_type": "hy_v4",
    "layer_types": ["deepseek_sparse_attention"],
    "indexer_types": ["full"],
    "mlp_layer_types": ["dense"],
}
MODELS = [
    IndexerModel("vllm.models.hy_v4.nvidia.model:HYV4ForCausalLM", CONFIG),
    IndexerModel("vllm.models.hy_v4.nvidia.mtp:HYV4MTP", CONFIG, "HYV4MTPModel"),
    IndexerModel(
        "vllm.models.hy_v4.amd.model:HYV4ForCausalLM",
        CONFIG,
        unreloadable="its post-load hook is not declared safe to run again",
    ),
]


@pytest.fixture(params=MODELS, ids=str)
def model(request: pytest.FixtureRequest) -> IndexerModel:
    return request.param


class TestIndexer(IndexerTests):
    pass


def test_stock_drops_a_pair_that_comes_in_two_calls(stock_tree: Path):
    found = run_on_stock(stock_tree, outcomes, MODELS)

    # The whole of `wk`; no error.
    lost = "32768 of 40960 elements differ, 32768 poisoned"
    assert found == {str(model): lost for model in MODELS}
