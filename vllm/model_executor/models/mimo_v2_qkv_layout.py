# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Where a rank finds its rows in a fused FP8 QKV projection of MiMo-V2.

The checkpoint has the rows in chunks, each with those of some of the heads, and a scale
for each block of 128 by 128:

    [Q_0 | K_0 | V_0 | Q_1 | K_1 | V_1 | ...]

Its blocks begin anew with each chunk, or are counted through all of them. A rank has

    [Q | K | V]    or, with `kv_chunk_rows`,    [Q | K_0 V_0 pad | K_1 V_1 pad | ...]

with blocks that are counted from its own first row.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from vllm.utils.math_utils import cdiv

BLOCK = 128
"""Rows, and columns, that share a scale."""

PADDING = -1
"""Stands for the source of a row that the checkpoint does not have."""


class RowRun(NamedTuple):
    """Consecutive rows that come from consecutive rows, or that are padding.

    Attributes:
        start: First row on the rank.
        source: First row in the checkpoint, or `PADDING`.
        length: Number of rows.
    """

    start: int
    source: int
    length: int


@dataclass(frozen=True)
class FusedQkvLayout:
    """The shape of a fused projection, and which part of it a rank has.

    Attributes:
        num_heads: Query heads on all ranks.
        num_kv_heads: Key and value heads on all ranks.
        head_dim: Rows of a query or key head.
        v_head_dim: Rows of a value head.
        chunks: Number of chunks in the checkpoint.
        tp_rank: The rank.
        tp_size: Number of ranks.
        kv_chunk_rows: Rows of K and V of a chunk on a rank, with padding; 0 where K and
            V lie apart.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    chunks: int
    tp_rank: int
    tp_size: int
    kv_chunk_rows: int = 0

    @property
    def is_even(self) -> bool:
        """Whether the heads can be cut into the chunks and for the ranks."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if self.chunks <= 0 or heads % self.chunks or kv_heads % self.chunks:
            return False
        replicated = self.tp_size % kv_heads == 0
        return heads % self.tp_size == 0 and (
            kv_heads % self.tp_size == 0 or replicated
        )

    @property
    def segments(self) -> tuple[int, int, int]:
        """Rows of Q, K and V in a chunk."""
        heads = self.num_heads // self.chunks
        kv_heads = self.num_kv_heads // self.chunks
        return (
            heads * self.head_dim,
            kv_heads * self.head_dim,
            kv_heads * self.v_head_dim,
        )

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return sum(self.segments)

    @property
    def rows(self) -> int:
        """Rows in the checkpoint."""
        return self.chunks * self.chunk_rows

    def scale_rows(self, by_chunk: bool) -> int:
        """Rows of scales in the checkpoint.

        Args:
            by_chunk: Whether blocks begin anew with each chunk.
        """
        if by_chunk:
            return self.chunks * cdiv(self.chunk_rows, BLOCK)
        return cdiv(self.rows, BLOCK)

    def begins_anew(self, scale_rows: int) -> bool:
        """Whether blocks begin anew with each chunk, by the number of rows of scales.

        Raises:
            ValueError: It is the number of neither.
        """
        by_chunk, through = self.scale_rows(True), self.scale_rows(False)
        if scale_rows not in (by_chunk, through):
            raise ValueError(
                f"found {scale_rows} rows of scales; expected {by_chunk}, of "
                f"{self.chunks} chunks of {self.chunk_rows} rows, or {through}, of "
                f"{self.rows} rows"
            )
        return scale_rows == by_chunk

    def keeps_blocks(self, by_chunk: bool) -> bool:
        """Whether each block on the rank is a block of the checkpoint, padding aside.

        If not, the rank's rows must be quantized again, for which weight and scales are
        needed both.

        Args:
            by_chunk: Whether blocks begin anew with each chunk.
        """
        if not by_chunk:
            return False
        if self.tp_size == self.chunks:
            return True
        q_rows, *kv_rows = self.segments
        return (
            self.tp_size < self.chunks
            and self.chunks % self.tp_size == 0
            and q_rows % BLOCK == 0
            and (self.kv_chunk_rows > 0 or not any(rows % BLOCK for rows in kv_rows))
        )

    @property
    def may_requantize(self) -> bool:
        """Whether there are checkpoints whose rows must be quantized again."""
        if not self.is_even:
            return False
        alike = self.scale_rows(True) == self.scale_rows(False)
        always_kept = self.keeps_blocks(True) and alike
        return not self.kv_chunk_rows and not always_kept


@cache
def source_rows(layout: FusedQkvLayout) -> torch.Tensor:
    """The row of the checkpoint that each row of the rank is.

    Returns:
        [rows on the rank], int64, on the CPU; `PADDING` for rows of zeros.
    """
    q_rows, k_rows, _ = layout.segments
    heads_of_rank = layout.num_heads // layout.tp_size
    q_heads = range(
        layout.tp_rank * heads_of_rank, (layout.tp_rank + 1) * heads_of_rank
    )
    parts = _rows_of_heads(layout, q_heads, 0, q_rows, layout.head_dim)
    if layout.kv_chunk_rows:
        return torch.cat([*parts, *_padded_kv_rows(layout)])
    kv_heads = _kv_heads(layout)
    parts += _rows_of_heads(layout, kv_heads, q_rows, k_rows, layout.head_dim)
    v_rows = layout.segments[2]
    parts += _rows_of_heads(
        layout, kv_heads, q_rows + k_rows, v_rows, layout.v_head_dim
    )
    return torch.cat(parts)


def _kv_heads(layout: FusedQkvLayout) -> range:
    """The rank's KV heads; several ranks have the same one where there are few."""
    if layout.tp_size > layout.num_kv_heads:
        first = layout.tp_rank // (layout.tp_size // layout.num_kv_heads)
        return range(first, first + 1)
    count = layout.num_kv_heads // layout.tp_size
    return range(layout.tp_rank * count, (layout.tp_rank + 1) * count)


def _rows_of_heads(
    layout: FusedQkvLayout, heads: range, offset: int, segment: int, dim: int
) -> list[torch.Tensor]:
    """Rows of heads whose segment begins at an offset in each chunk."""
    starts = (
        head * dim // segment * layout.chunk_rows + offset + head * dim % segment
        for head in heads
    )
    return [torch.arange(start, start + dim, device="cpu") for start in starts]


def _padded_kv_rows(layout: FusedQkvLayout) -> list[torch.Tensor]:
    """For each of the rank's chunks, its rows of K and V, and padding."""
    q_rows, *kv_rows = layout.segments
    missing = layout.kv_chunk_rows - sum(kv_rows)
    padding = torch.full((missing,), PADDING, device="cpu")
    count = layout.chunks // layout.tp_size
    parts = []
    for chunk in range(layout.tp_rank * count, (layout.tp_rank + 1) * count):
        start = chunk * layout.chunk_rows
        stop = start + layout.chunk_rows
        parts += [torch.arange(start + q_rows, stop, device="cpu"), padding]
    return parts


@cache
def row_runs(layout: FusedQkvLayout) -> tuple[RowRun, ...]:
    """Which rows to copy, and which to fill with zeros."""
    rows = source_rows(layout)
    steps = rows.diff()
    joined = (steps == 1) | ((steps == 0) & (rows[1:] == PADDING))
    starts = [0, *((~joined).nonzero().flatten() + 1).tolist()]
    stops = [*starts[1:], len(rows)]
    return tuple(
        RowRun(start, int(rows[start]), stop - start)
        for start, stop in zip(starts, stops, strict=True)
    )


def scale_rows_of(
    layout: FusedQkvLayout, rows: torch.Tensor, by_chunk: bool
) -> torch.Tensor:
    """The row of the checkpoint's scales for each row of its weight.

    Args:
        layout: The layout.
        rows: Rows of the weight in the checkpoint.
        by_chunk: Whether blocks begin anew with each chunk.

    Returns:
        As many rows of scales.
    """
    if not by_chunk:
        return rows // BLOCK
    first = rows // layout.chunk_rows * cdiv(layout.chunk_rows, BLOCK)
    return first + rows % layout.chunk_rows // BLOCK


@cache
def scale_runs(layout: FusedQkvLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's rows in runs that have one scale, whichever blocks a checkpoint has.

    So what is loaded does not depend on how the blocks are counted.

    Returns:
        The row of the checkpoint's weight that begins each run, [runs], and the run of
        each row of the rank, [rows on the rank]; int64.
    """
    rows = source_rows(layout)
    begins = torch.zeros(len(rows), dtype=torch.bool, device="cpu")
    begins[0] = True
    for by_chunk in (True, False):
        begins[1:] |= scale_rows_of(layout, rows, by_chunk).diff() != 0
    return rows[begins], begins.cumsum(0) - 1
