# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""DeepEP V2 maps tokens by ids that outlive the object that made them."""

import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _deep_ep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for GPUs, of which nothing is called here."""
    monkeypatch.setitem(sys.modules, "deep_ep", MagicMock())


def _ids(offset: int, count: int) -> torch.Tensor:
    """Ids as an object reads them that post-load processing has just made."""
    from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_v2 import (
        DeepEPV2PrepareAndFinalize as Finalize,
    )

    made: Any = Finalize.__new__(Finalize)
    made.rank_expert_offset = offset
    made._global_expert_ids_cache = None
    ids = made._global_expert_ids(count, CPU)
    assert made._global_expert_ids(count, CPU) is ids
    return ids


def test_rebuilt_objects_read_the_ids_at_the_first_address():
    address = _ids(6, 3).data_ptr()

    for _ in range(3):
        ids = _ids(6, 3)
        assert ids.data_ptr() == address
        assert ids.tolist() == [6, 7, 8]
        assert ids.dtype == torch.int64


def test_another_rank_has_other_ids():
    assert _ids(0, 2).tolist() == [0, 1]
    assert _ids(2, 2).tolist() == [2, 3]
    assert _ids(2, 3).tolist() == [2, 3, 4]
