# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A weight whose packed bytes live inside the rows that they become.

The storage is that of the runtime weight, [rows, cols] of bfloat16 (or another float
dtype). What a checkpoint stores of row i goes to the start of row i:

    runtime row:  |<-------------------- 2 * cols bytes -------------------->|
    FP8:          |<------- cols bytes ------->|           unused            |
    NVFP4:        |<- cols/2 ->|                   unused                    |

So a quantized checkpoint needs no memory of its own, unpacking needs no second weight,
and runtime and packed rows can be mixed. What each row holds is recorded.

The parameter is looked at in one of two ways, over the same bytes: packed, while it is
loaded, and as the runtime weight, once it is processed. Loading works through either.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch

from vllm.model_executor.parameter import BasevLLMParameter, ModelWeightParameter

RUNTIME_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of a weight that a kernel can read, and of tensors that need no scale."""


class RowState(IntEnum):
    """What a row of a weight holds."""

    EMPTY = 0
    PACKED = 1
    RUNTIME = 2


class ScaleArrival(NamedTuple):
    """A scale that was loaded for a shard.

    Attributes:
        dtype: Of the checkpoint tensor.
        row_offset: Rows between the start of the first scale's block and the shard's
            first row; not 0 only where a tensor-parallel slice starts inside a block.
        col_offset: The same for columns.
    """

    dtype: torch.dtype
    row_offset: int = 0
    col_offset: int = 0


class Run(NamedTuple):
    """Consecutive rows of one shard that hold the same.

    Attributes:
        shard: Index of the shard.
        start: First row, counted within the layer's weight.
        stop: Row after the last.
        offset: First row, counted within the shard.
    """

    shard: int
    start: int
    stop: int
    offset: int


@dataclass
class LoadRecord:
    """What the rows of a layer's weight hold, and which scales came for them.

    One object for all parameters of a layer. Layerwise reload makes other parameters
    for a time, which share it; see `PackedRowsParameter.runtime_rows`.

    Attributes:
        prefix: Name of the layer, for messages.
        shard_rows: Rows of each shard on this rank.
        cols: Columns of the weight on this rank.
        states: A `RowState` for each row.
        scales: By the scale's name and the shard's index.
    """

    prefix: str
    shard_rows: tuple[int, ...]
    cols: int
    states: bytearray = field(init=False)
    scales: dict[tuple[str, int], ScaleArrival] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = bytearray(sum(self.shard_rows))

    def rows(self, shard: int) -> slice:
        """The rows of a shard, within the layer's weight."""
        start = sum(self.shard_rows[:shard])
        return slice(start, start + self.shard_rows[shard])

    def mark(self, rows: slice, state: RowState) -> None:
        """Records what some rows hold from now on."""
        self.states[rows] = bytes([state]) * len(self.states[rows])

    def finish(self) -> None:
        """Records that all rows hold runtime bytes, and that scales are used up."""
        self.mark(slice(None), RowState.RUNTIME)
        self.scales.clear()

    def holds(self, shard: int, state: RowState) -> bool:
        """Whether any row of a shard holds this."""
        return state in self.states[self.rows(shard)]

    def runs(self, state: RowState) -> Iterator[Run]:
        """The longest runs of rows that hold this, none across two shards."""
        for shard in range(len(self.shard_rows)):
            first = row = self.rows(shard).start
            for held, group in groupby(self.states[self.rows(shard)]):
                length = sum(1 for _ in group)
                if held == state:
                    yield Run(shard, row, row + length, row - first)
                row += length


class Part(NamedTuple):
    """Which part of a checkpoint tensor goes into which shard of a layer.

    The tensor is cut into `row_ranks` by `col_ranks` equal parts.

    Attributes:
        shard: Index of the shard.
        row_rank: Index of the part, by rows.
        row_ranks: Number of parts, by rows.
        col_rank: Index of the part, by columns.
        col_ranks: Number of parts, by columns.
    """

    shard: int = 0
    row_rank: int = 0
    row_ranks: int = 1
    col_rank: int = 0
    col_ranks: int = 1


if TYPE_CHECKING:
    _Base = BasevLLMParameter
else:
    _Base = object


class PartLoading(_Base):
    """Turns each of the calls by which a linear layer loads into one, `load_part`.

    To be mixed into a subclass of `BasevLLMParameter`.
    """

    record: LoadRecord

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads a part of a checkpoint tensor.

        On a parameter on meta, which is how layerwise reload counts elements, only one
        copy of the right size is made.

        Args:
            loaded_weight: The whole checkpoint tensor.
            part: The part to take.

        Raises:
            ValueError: The tensor is not what the layer can take; nothing was written.
        """
        raise NotImplementedError

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """Loads the rows of this rank."""
        self.load_part(loaded_weight, Part(0, self.tp_rank, self.tp_size))

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        """Loads the columns of this rank."""
        part = Part(col_rank=self.tp_rank, col_ranks=self.tp_size)
        self.load_part(loaded_weight, part)

    def load_merged_column_weight(self, loaded_weight: torch.Tensor, **kwargs) -> None:
        """Loads the rows of this rank into the shard `shard_id`."""
        shard = self._shard_index(kwargs["shard_id"])
        self.load_part(loaded_weight, Part(shard, self.tp_rank, self.tp_size))

    def load_qkv_weight(self, loaded_weight: torch.Tensor, **kwargs) -> None:
        """Loads a shard of which `num_heads` consecutive ranks may share a part."""
        shard = self._shard_index(kwargs["shard_id"])
        sharers = 1 if shard == 0 else kwargs.get("num_heads", 1)
        part = Part(shard, self.tp_rank // sharers, self.tp_size // sharers)
        self.load_part(loaded_weight, part)

    def _shard_index(self, shard_id: int | str) -> int:
        shards = len(self.record.shard_rows)
        index = {"q": 0, "k": 1, "v": 2}.get(str(shard_id), shard_id)
        if not isinstance(index, int) or not 0 <= index < shards:
            raise ValueError(
                f"{self.record.prefix}: found shard {shard_id!r}; expected one of the "
                f"layer's {shards} shards"
            )
        return index


def load_replicated(
    param: PartLoading,
    loaded_weight: torch.Tensor,
    loaded_shard_id: int | str | None = None,
) -> None:
    """Weight loader of layers that hold the whole tensor on every rank.

    Args:
        param: Parameter to load into.
        loaded_weight: The checkpoint tensor.
        loaded_shard_id: Shard that it is; may be left out where there is only one.
    """
    shards = len(param.record.shard_rows)
    if loaded_shard_id is None and shards > 1:
        raise ValueError(
            f"{param.record.prefix}: found a tensor for no certain shard; expected one "
            f"of {shards} shards: load the shards one by one"
        )
    param.load_part(loaded_weight, Part(param._shard_index(loaded_shard_id or 0)))


def count_elements(target: torch.Tensor) -> None:
    """Copies into a target on meta, for layerwise reload to count its elements."""
    target.copy_(torch.empty_like(target))


def take_part(
    loaded_weight: torch.Tensor, shape: tuple[int, int], part: Part, name: str
) -> torch.Tensor:
    """Cuts a part out of a checkpoint tensor, once its size is what it must be.

    Args:
        loaded_weight: The whole tensor, two-dimensional.
        shape: Of the part.
        part: Which part.
        name: Of the parameter, for messages.

    Returns:
        A view of the part.

    Raises:
        ValueError: The tensor has another shape than `shape` times the parts.
    """
    rows, cols = shape
    whole = (rows * part.row_ranks, cols * part.col_ranks)
    if tuple(loaded_weight.shape) != whole:
        raise ValueError(
            f"{name}, shard {part.shard}: found a checkpoint tensor of dtype "
            f"{loaded_weight.dtype} and shape {tuple(loaded_weight.shape)}; expected "
            f"shape {whole}: check that the tensor belongs to this layer, in full"
        )
    row, col = part.row_rank * rows, part.col_rank * cols
    return loaded_weight[row : row + rows, col : col + cols]


class PackedRowsParameter(PartLoading, ModelWeightParameter):
    """A weight that loads packed rows and runtime rows, by the dtype of the tensor."""

    def __init__(
        self,
        record: LoadRecord,
        packed_dtype: torch.dtype,
        values_per_byte: int,
        **kwargs,
    ) -> None:
        """Makes the parameter, over a storage of the runtime weight.

        Args:
            record: The layer's record.
            packed_dtype: Of the packed checkpoint tensor; one byte wide.
            values_per_byte: Weights in one element of it.
            **kwargs: `data`, the runtime weight [rows, cols], and what
                `ModelWeightParameter` takes.
        """
        self.record = record
        self.packed_dtype = packed_dtype
        self.packed_cols = record.cols // values_per_byte
        self.runtime_dtype: torch.dtype = kwargs["data"].dtype
        super().__init__(**kwargs)

    @property
    def full_name(self) -> str:
        """Name of the parameter, for messages."""
        return f"{self.record.prefix}.weight"

    def runtime_rows(self) -> torch.Tensor:
        """The runtime weight, [rows, cols], over the parameter's storage.

        `clone`, `.to(device)` and layerwise reload make a storage that has room for
        packed bytes only. Such a parameter gets a storage of the runtime weight's size
        first. Packed bytes go along; rows that held runtime bytes are lost, and are
        recorded as empty.
        """
        data = self.data
        if data.dtype == self.runtime_dtype and data.stride(1) == 1:
            return data
        rows, row_bytes = len(data), self.record.cols * self.runtime_dtype.itemsize
        needed = data.storage_offset() + rows * row_bytes
        has_rows = data.stride() == (row_bytes, 1)
        if has_rows and data.untyped_storage().nbytes() >= needed:
            whole = data.as_strided((rows, row_bytes), (row_bytes, 1))
            return whole.view(self.runtime_dtype)
        return self._rehouse()

    def packed_rows(self) -> torch.Tensor:
        """The packed bytes, [rows, packed cols], inside the rows of `runtime_rows`."""
        return self.runtime_rows().view(self.packed_dtype)[:, : self.packed_cols]

    def _rehouse(self) -> torch.Tensor:
        rows = torch.empty(
            (len(self.data), self.record.cols),
            dtype=self.runtime_dtype,
            device=self.device,
        )
        packed = rows.view(self.packed_dtype)[:, : self.packed_cols]
        packed.copy_(self.data)
        states = self.record.states
        states[:] = states.replace(bytes([RowState.RUNTIME]), bytes([RowState.EMPTY]))
        self.data = packed
        return rows

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Writes packed bytes or runtime values into the rows of a shard.

        Args:
            loaded_weight: The whole checkpoint tensor: [rows, packed cols] in the
                packed dtype, or [rows, cols] in one of `RUNTIME_DTYPES`.
            part: The part to take.

        Raises:
            ValueError: Its dtype or its shape is another; nothing was written.
        """
        packed = loaded_weight.dtype == self.packed_dtype
        if not packed and loaded_weight.dtype not in RUNTIME_DTYPES:
            raise ValueError(
                f"{self.full_name}, shard {part.shard}: found a checkpoint tensor of "
                f"dtype {loaded_weight.dtype} and shape {tuple(loaded_weight.shape)}; "
                f"expected {self.packed_dtype}, or one of {RUNTIME_DTYPES}"
            )
        rows = self.record.rows(part.shard)
        width = self.packed_cols if packed else self.record.cols
        shape = (rows.stop - rows.start, width)
        values = take_part(loaded_weight, shape, part, self.full_name)
        if self.is_meta:
            count_elements(self.data[rows])
            return
        target = self.packed_rows() if packed else self.runtime_rows()
        target[rows].copy_(values)
        self.record.mark(rows, RowState.PACKED if packed else RowState.RUNTIME)

    def show_packed(self) -> None:
        """Makes the parameter's data the packed bytes; no byte changes."""
        self.data = self.packed_rows()

    def show_runtime(self) -> None:
        """Makes the parameter's data the runtime weight; no byte changes."""
        self.data = self.runtime_rows()


def runtime_weight(layer: torch.nn.Module) -> torch.Tensor:
    """The weight of a linear layer as its kernel will read it.

    For what is decided by the dtype and the shape of a weight before it is loaded.

    Args:
        layer: The layer.

    Returns:
        Its weight: [rows, cols], also if the weight is packed rows for now.
    """
    weight = layer.weight
    if isinstance(weight, PackedRowsParameter):
        return weight.runtime_rows()
    assert isinstance(weight, torch.Tensor)
    return weight
