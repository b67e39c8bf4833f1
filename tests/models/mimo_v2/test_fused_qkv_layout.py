# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Each rank of groups of any size has the rows and scales that stock gives it."""

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stock_vllm import run_on_stock

HEADS, HEAD_DIM, V_HEAD_DIM, CHUNKS, HIDDEN, BLOCK = 16, 192, 128, 4, 256, 128
SEED = 3

Case = tuple[int, int, bool, bool]
"""KV heads, ranks, whether blocks begin anew, whether K and V stay together."""

CASES: list[Case] = list(
    product((4, 8), (1, 2, 4, 8, 16), (True, False), (True, False))
)
IDS = [
    f"{kv}-heads-tp{tp}-{'anew' if by_chunk else 'through'}{'-together' * together}"
    for kv, tp, by_chunk, together in CASES
]

Pair = tuple[torch.Tensor, torch.Tensor]


def _checkpoint(kv_heads: int, by_chunk: bool) -> Pair:
    generator = torch.Generator().manual_seed(SEED)
    rows = HEADS * HEAD_DIM + kv_heads * (HEAD_DIM + V_HEAD_DIM)
    weight = torch.randn(rows, HIDDEN, generator=generator) * 100
    chunks = CHUNKS if by_chunk else 1
    blocks = chunks * -(-rows // chunks // BLOCK)
    scale = torch.rand(blocks, HIDDEN // BLOCK, generator=generator) + 0.01
    return weight.to(torch.float8_e4m3fn), scale


def _as_bytes(pair: Pair) -> Pair:
    weight, scale = pair
    return weight.contiguous().view(torch.uint8), scale.contiguous()


def _stock(cases: list[Case]) -> list[tuple[int, list[Pair] | None]]:
    """Of each case, rows of K and V together, and each rank's pair; None if refused."""
    from vllm.model_executor.models import mimo_v2

    found: list[tuple[int, list[Pair] | None]] = []
    for kv_heads, tp_size, by_chunk, together in cases:
        shape = (HEADS, kv_heads, HEAD_DIM, V_HEAD_DIM)
        kv_rows = 0
        if together:
            kv_rows = mimo_v2._fused_qkv_kv_chunk_rows(*shape, tp_size, CHUNKS)
        stock: Any = mimo_v2
        pair = _checkpoint(kv_heads, by_chunk)
        try:
            ranks = [
                _as_bytes(
                    stock._shard_fp8_qkv_proj(
                        *pair, *shape, rank, tp_size, CHUNKS, kv_chunk_rows=kv_rows
                    )
                )
                for rank in range(tp_size)
            ]
        except ValueError:
            found.append((kv_rows, None))
        else:
            found.append((kv_rows, ranks))
    return found


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[Case, Any]:
    print(f"seed {SEED}")
    return dict(zip(CASES, run_on_stock(stock_tree, _stock, CASES), strict=True))


def _parameter(data: torch.Tensor, layout: Any) -> Any:
    param: Any = torch.nn.Parameter(data, requires_grad=False)
    param.qkv_layout, param.full_name = layout, "qkv_proj"
    return param


def _load(layout: Any, pair: Pair, by_chunk: bool) -> Pair:
    from vllm.model_executor.models.mimo_v2_qkv_layout import scale_runs, source_rows
    from vllm.model_executor.models.mimo_v2_qkv_loading import requantize
    from vllm.model_executor.models.mimo_v2_qkv_parameters import (
        load_fused_scale,
        load_fused_weight,
        load_run_scale,
    )

    rows, cols = len(source_rows(layout)), HIDDEN // BLOCK
    weight = _parameter(torch.empty(rows, HIDDEN, dtype=torch.float8_e4m3fn), layout)
    scale = _parameter(torch.empty(-(-rows // BLOCK), cols), layout)
    load_fused_weight(weight, pair[0])
    if layout.keeps_blocks(by_chunk):
        load_fused_scale(scale, pair[1])
    else:
        runs = _parameter(torch.empty(len(scale_runs(layout)[0]), cols), layout)
        load_run_scale(runs, pair[1])
        requantize(weight.data, scale.data, runs.data, layout)
    return _as_bytes((weight.data, scale.data))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_ranks_have_what_stock_gives_them(stock: dict[Case, Any], case: Case):
    from vllm.model_executor.models.mimo_v2_qkv_layout import FusedQkvLayout

    kv_heads, tp_size, by_chunk, _ = case
    kv_rows, ranks = stock[case]
    layout = FusedQkvLayout(
        HEADS, kv_heads, HEAD_DIM, V_HEAD_DIM, CHUNKS, 0, tp_size, kv_rows
    )
    anew = layout.begins_anew(layout.scale_rows(by_chunk))
    if ranks is None:
        assert not layout.keeps_blocks(anew) and not layout.may_requantize
        return
    pair = _checkpoint(kv_heads, by_chunk)
    for rank, expected in enumerate(ranks):
        found = _load(replace(layout, tp_rank=rank), pair, anew)
        assert all(map(torch.equal, found, expected)), asdict(layout) | {"rank": rank}


def test_there_are_cases_of_every_kind(stock: dict[Case, Any]):
    from vllm.model_executor.models.mimo_v2_qkv_layout import FusedQkvLayout

    kinds = set()
    for (kv_heads, tp_size, by_chunk, _), (kv_rows, ranks) in stock.items():
        layout = FusedQkvLayout(
            HEADS, kv_heads, HEAD_DIM, V_HEAD_DIM, CHUNKS, 0, tp_size, kv_rows
        )
        anew = layout.begins_anew(layout.scale_rows(by_chunk))
        kinds.add((ranks is None, layout.keeps_blocks(anew), kv_rows > 0))
    assert kinds == {
        (True, False, True),
        (False, True, True),
        (False, True, False),
        (False, False, False),
    }
