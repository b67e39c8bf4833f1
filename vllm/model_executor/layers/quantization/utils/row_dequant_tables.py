# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Unpacking rows of weights in place by table, where no kernel does it.

On the CPU, PyTorch casts FP8 one value at a time, and FP4 not at all. To look up two
values at once is about ten times faster: of FP8, those of a pair of bytes; of FP4,
those of a byte of codes with the byte of its scale.
"""

from collections.abc import Iterator
from functools import cache

import torch

CHUNK_VALUES = 1 << 17
"""Weights that are unpacked at a time, to stay in the cache."""

_BYTES = 1 << 8


def unpack_fp8_rows(
    rows: torch.Tensor,
    scale: torch.Tensor,
    block: tuple[int, int],
    offset: tuple[int, int],
) -> None:
    """Unpacks FP8 weights in place; see `unpack_fp8` for the arguments."""
    cols = rows.shape[1]
    device = rows.device
    # Of an odd number of columns, the last pair has a byte that is no weight.
    pairs = rows.view(torch.uint16)[:, : (cols + 1) // 2]
    look_up = _LookUp(_e4m3_pairs(device), _rows_of_chunk(rows), pairs.shape[1])
    scale_cols = (torch.arange(cols, device=device) + offset[1]) // block[1]
    whole_rows = scale.shape[1] == 1
    for chunk in _chunks(rows, 0 if whole_rows else block[0], offset[0]):
        if whole_rows:
            index = torch.arange(chunk.start, chunk.stop, device=device) + offset[0]
            factors = scale[index // block[0]]
        else:
            factors = scale[(chunk.start + offset[0]) // block[0], scale_cols]
        index = look_up.index(chunk).copy_(pairs[chunk])
        rows[chunk] = look_up(index, torch.float32)[:, :cols].mul_(factors)


def unpack_fp4_rows(
    rows: torch.Tensor, scale: torch.Tensor, scale_2: torch.Tensor | None
) -> None:
    """Unpacks E2M1 weights in place; see `unpack_fp4` for the arguments."""
    cols = rows.shape[1]
    device = rows.device
    scale_values = torch.arange(_BYTES, dtype=torch.uint8, device="cpu")
    factors = scale_values.view(scale.dtype).float().to(device)
    if scale_2 is not None:
        factors *= scale_2
    # Of each byte of a scale, for each byte of codes: [65536, 2].
    values = (_e2m1_values(device) * factors[:, None, None]).to(rows.dtype)
    table = values.view(torch.int64 if values.itemsize == 4 else torch.int32).flatten()
    packed = rows.view(torch.uint8)[:, : cols // 2]
    scale = scale.view(torch.uint8)
    group_bytes = packed.shape[1] // scale.shape[1]
    in_high_byte = torch.arange(0, _BYTES**2, _BYTES, dtype=torch.int32, device=device)
    in_high_byte = in_high_byte[:, None].repeat(1, group_bytes)
    look_up = _LookUp(table, _rows_of_chunk(rows), packed.shape[1])
    for chunk in _chunks(rows):
        index = look_up.index(chunk)
        codes = scale[chunk].to(torch.int32).flatten()
        torch.index_select(in_high_byte, 0, codes, out=index.view(-1, group_bytes))
        rows[chunk] = look_up(index.add_(packed[chunk]), rows.dtype)


@cache
def _e4m3_pairs(device: torch.device) -> torch.Tensor:
    """Two float32 for each pair of E4M3 bytes: [65536], int64."""
    codes = torch.arange(_BYTES, dtype=torch.uint8, device="cpu")
    values = codes.view(torch.float8_e4m3fn).float()
    first, second = values.repeat(_BYTES), values.repeat_interleave(_BYTES)
    return torch.stack((first, second), dim=1).view(torch.int64).flatten().to(device)


@cache
def _e2m1_values(device: torch.device) -> torch.Tensor:
    """Two values for each byte of two E2M1 codes: [256, 2], float32."""
    magnitudes = torch.tensor(
        [0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float32, device="cpu"
    )
    values = torch.cat((magnitudes, -magnitudes))
    codes = torch.arange(_BYTES, device="cpu")
    return torch.stack((values[codes & 0xF], values[codes >> 4]), dim=1).to(device)


class _LookUp:
    """A table, and buffers that are used again for each chunk."""

    def __init__(self, table: torch.Tensor, rows: int, width: int) -> None:
        """Makes the buffers.

        Args:
            table: Of two values in each element: [elements].
            rows: The most rows of a chunk.
            width: Elements that are looked up for a row.
        """
        self._table = table
        self._index = torch.empty(rows, width, dtype=torch.int32, device=table.device)
        self._found = table.new_empty(rows, width)

    def index(self, chunk: slice) -> torch.Tensor:
        """Where to write what to look up for a chunk: [its rows, width], int32."""
        return self._index[: chunk.stop - chunk.start]

    def __call__(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Gives the values: [rows, 2 * width] of the dtype, until the next call."""
        found = self._found[: len(index)]
        torch.index_select(self._table, 0, index.view(-1), out=found.view(-1))
        return found.view(dtype)


def _rows_of_chunk(rows: torch.Tensor) -> int:
    return min(len(rows), max(1, CHUNK_VALUES // rows.shape[1]))


def _chunks(rows: torch.Tensor, block: int = 0, offset: int = 0) -> Iterator[slice]:
    """Cuts rows into chunks.

    Args:
        rows: [rows, cols].
        block: Rows of a block of which no chunk may cross the end, or 0.
        offset: Rows between the start of a block and the first row.

    Yields:
        Rows of a chunk.
    """
    row = 0
    while row < len(rows):
        stop = min(len(rows), row + _rows_of_chunk(rows))
        if block:
            stop = min(stop, row + block - (row + offset) % block)
        yield slice(row, stop)
        row = stop
