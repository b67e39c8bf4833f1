# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A weight whose packed bytes live inside the rows that they become.

The parameter is the runtime weight, [rows, cols] of bfloat16 (or another float dtype),
before it is loaded and after. What a checkpoint stores of row i goes to the start of
row i:

    runtime row:  |<-------------------- 2 * cols bytes -------------------->|
    FP8:          |<------- cols bytes ------->|           unused            |
    FP4:          |<- cols/2 ->|                   unused                    |

So a quantized checkpoint needs no memory of its own, unpacking needs no second weight,
and shards of every format can be mixed. What each shard holds is recorded.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from vllm.model_executor.parameter import BasevLLMParameter, ModelWeightParameter

RUNTIME_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of a weight that a kernel can read, and of tensors that need no scale."""

VALUES_PER_BYTE = {torch.float8_e4m3fn: 1, torch.uint8: 2}
"""Dtypes of packed weights, FP8 and FP4, and how many weights are in one byte."""


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


@dataclass
class LoadRecord:
    """What the shards of a layer's weight hold, and which scales came for them.

    One object for all parameters of a layer.

    Attributes:
        prefix: Name of the layer, for messages.
        shard_rows: Rows of each shard on this rank.
        cols: Columns of the weight on this rank.
        ranks: Number of slices of the weight, by rows and by columns.
        block: Rows and columns of a block of block-FP8.
        held: Of each shard, the dtype that its rows hold: a packed one until they are
            unpacked; None where they hold nothing.
        scales: By the scale's name and the shard's index.
    """

    prefix: str
    shard_rows: tuple[int, ...]
    cols: int
    ranks: tuple[int, int] = (1, 1)
    block: tuple[int, int] = (128, 128)
    held: list[torch.dtype | None] = field(init=False)
    scales: dict[tuple[str, int], ScaleArrival] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hold(None)

    def rows(self, shard: int) -> slice:
        """The rows of a shard, within the layer's weight."""
        start = sum(self.shard_rows[:shard])
        return slice(start, start + self.shard_rows[shard])

    def hold(self, dtype: torch.dtype | None) -> None:
        """Records that all shards hold a runtime dtype or nothing, and no scales."""
        self.held = [dtype] * len(self.shard_rows)
        self.scales.clear()


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
    parameter_name: str

    @property
    def full_name(self) -> str:
        """Name of the parameter, for messages."""
        return f"{self.record.prefix}.{self.parameter_name}"

    def rows_of(self, rows: int) -> int:
        """Rows that a checkpoint tensor has for so many of the weight, or 0 for any."""
        return rows

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads a part of a checkpoint tensor.

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


def refuse_other_rows(loader: Callable, sharers: int = 1) -> Callable:
    """Has a merged layer's loader refuse fused tensors that are not of its shards.

    Args:
        loader: Cuts a tensor that comes for several shards, and ignores what is left.
        sharers: Ranks that share a slice of each shard but the first.

    Returns:
        The loader. It raises a ValueError before anything is written.
    """

    @functools.wraps(loader)
    def load(
        param: PartLoading,
        loaded_weight: torch.Tensor,
        loaded_shard_id: tuple[int, ...] | int | str | None = None,
    ) -> None:
        shards = range(len(param.record.shard_rows))
        if loaded_shard_id is None or isinstance(loaded_shard_id, tuple):
            _check_rows(param, loaded_weight, loaded_shard_id or shards, sharers)
        loader(param, loaded_weight, loaded_shard_id)

    return load


def _check_rows(
    param: PartLoading,
    loaded_weight: torch.Tensor,
    shards: Sequence[int],
    sharers: int,
) -> None:
    whole = [rows * param.tp_size for rows in param.record.shard_rows]
    whole[1:] = [rows // sharers for rows in whole[1:]]
    expected = sum(param.rows_of(whole[shard]) for shard in shards)
    if expected and loaded_weight.shape[:1] != (expected,):
        raise ValueError(
            f"{param.full_name}: found a checkpoint tensor of dtype "
            f"{loaded_weight.dtype} and shape {tuple(loaded_weight.shape)} for "
            f"{len(shards)} shards at once; expected {expected} rows: check that the "
            "tensor belongs to this layer, or load the shards one by one"
        )
    # A row more would belong to the last block, which two shards would share.
    if expected and any(
        param.rows_of(whole[shard]) == param.rows_of(whole[shard] + 1)
        for shard in shards[:-1]
    ):
        raise ValueError(
            f"{param.full_name}: found a checkpoint tensor of dtype "
            f"{loaded_weight.dtype} and shape {tuple(loaded_weight.shape)} for "
            f"{len(shards)} shards at once, which do not end with their last blocks; "
            "expected the scales of one shard: load the shards one by one"
        )


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

    parameter_name = "weight"

    def __init__(self, record: LoadRecord, **kwargs) -> None:
        """Makes the parameter.

        Args:
            record: The layer's record.
            **kwargs: `data`, the runtime weight [rows, cols], and what
                `ModelWeightParameter` takes.
        """
        self.record = record
        super().__init__(**kwargs)

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Writes packed bytes or runtime values into the rows of a shard.

        Args:
            loaded_weight: The whole checkpoint tensor: [rows, cols] in FP8 or in one of
                `RUNTIME_DTYPES`, or [rows, cols / 2] bytes of FP4.
            part: The part to take.

        Raises:
            ValueError: Its dtype or its shape is another; nothing was written.
        """
        dtype = loaded_weight.dtype
        if dtype not in (*VALUES_PER_BYTE, *RUNTIME_DTYPES):
            raise ValueError(
                f"{self.full_name}, shard {part.shard}: found a checkpoint tensor of "
                f"dtype {dtype} and shape {tuple(loaded_weight.shape)}; expected one "
                f"of {tuple(VALUES_PER_BYTE)}, or of {RUNTIME_DTYPES}"
            )
        target = self.data[self.record.rows(part.shard)]
        if dtype in VALUES_PER_BYTE:
            width = self.record.cols // VALUES_PER_BYTE[dtype]
            target = target.view(dtype)[:, :width]
        shape = (target.shape[0], target.shape[1])
        target.copy_(take_part(loaded_weight, shape, part, self.full_name))
        self.record.held[part.shard] = target.dtype
