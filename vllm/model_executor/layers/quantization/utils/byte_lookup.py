# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Unpacking by table, where no kernel does it.

PyTorch casts FP8 on the CPU one value at a time. To look up two bytes at once in a
table of all 65536 pairs is about ten times faster. Every E4M3 and E2M1 value is a
bfloat16.
"""

from collections.abc import Iterator
from functools import cache

import torch

PAIRS = 1 << 16

CHUNK_VALUES = 1 << 17
"""Weights that are unpacked at a time, to stay in the cache."""


@cache
def e4m3_table(device: torch.device) -> torch.Tensor:
    """Two bfloat16 for each pair of E4M3 bytes: [65536], int32."""
    codes = torch.arange(1 << 8, dtype=torch.uint8, device="cpu")
    values = codes.view(torch.float8_e4m3fn).float().bfloat16()
    return _pair_table(values[:, None]).view(torch.int32).flatten().to(device)


@cache
def e2m1_table(device: torch.device) -> torch.Tensor:
    """Four bfloat16 for each pair of bytes of two E2M1 codes: [65536], int64."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device="cpu")
    values = torch.cat((magnitudes, -magnitudes)).bfloat16()
    codes = torch.arange(1 << 8, device="cpu")
    table = torch.stack((values[codes & 0xF], values[codes >> 4]), dim=1)
    return _pair_table(table).view(torch.int64).flatten().to(device)


def _pair_table(values: torch.Tensor) -> torch.Tensor:
    """What each pair of bytes stands for, the first in the low byte: [65536, 2n]."""
    pairs = torch.arange(PAIRS, device="cpu")
    return torch.cat((values[pairs & 0xFF], values[pairs >> 8]), dim=1).contiguous()


def look_up(packed: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Gives packed bytes their values.

    Args:
        packed: [rows, width] of a dtype of one byte; the rows may lie apart.
        table: [65536], made for `packed`.

    Returns:
        [rows, width * values in a byte], float32.
    """
    rows, width = packed.shape
    packed = packed.view(torch.uint8)
    if width % 2 or packed.stride(0) % 2 or packed.storage_offset() % 2:
        packed = torch.nn.functional.pad(packed, (0, width % 2)).contiguous()
    pairs = packed.view(torch.uint16).to(torch.int32).flatten()
    values = table.index_select(0, pairs).view(torch.bfloat16).view(rows, -1)
    per_byte = table.itemsize // 4
    return values[:, : width * per_byte].float()


def chunks(rows: int, cols: int, block: int = 0, offset: int = 0) -> Iterator[slice]:
    """Cuts rows into chunks of at most `CHUNK_VALUES` weights, or of one row.

    Args:
        rows: Number of rows.
        cols: Weights in a row.
        block: Rows of a block of which no chunk may cross the end, or 0.
        offset: Rows between the start of a block and the first row.

    Yields:
        Rows of a chunk.
    """
    most = max(1, CHUNK_VALUES // cols)
    row = 0
    while row < rows:
        stop = min(rows, row + most)
        if block:
            stop = min(stop, row + block - (row + offset) % block)
        yield slice(row, stop)
        row = stop
