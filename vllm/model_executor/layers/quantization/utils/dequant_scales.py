# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Scales of weights that are unpacked after loading.

Each loads alone and records that it came. Where none has come, a scale holds NaN; it
does so again once it has been used, so that what it held never meets another weight.
"""

from collections.abc import Callable
from typing import ClassVar, Self

import torch

from vllm.model_executor.layers.quantization.utils.packed_rows import (
    LoadRecord,
    Part,
    PartLoading,
    ScaleArrival,
    take_part,
)
from vllm.model_executor.parameter import (
    BlockQuantScaleParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    PerTensorScaleParameter,
)
from vllm.utils.math_utils import cdiv

FLOAT_SCALE_DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e8m0fnu,
)
"""Dtypes of the scales of FP8 weights, beside the bytes of E8M0 ones. E4M3 scales are
those of NVFP4."""

_E4M3_NAN = 0x7F
_E8M0_NAN = 0xFF


class ScaleLoading(PartLoading):
    """A scale, mixed into vLLM's parameter class of its kind."""

    # A reload must not wait for it: which scales come is a matter of the format.
    weight_loader_numel = 0

    dtype_of_scale: ClassVar[torch.dtype] = torch.float32
    dims: ClassVar[dict[str, int]] = {}
    """What vLLM's parameter class takes: which dimension is sliced with which."""

    def __init__(self, record: LoadRecord, parameter_name: str, **kwargs) -> None:
        """Makes a scale that has not come; see `make`."""
        self.record = record
        self.parameter_name = parameter_name
        super().__init__(**kwargs)
        self.clear()

    @classmethod
    def make(
        cls, record: LoadRecord, parameter_name: str, weight_loader: Callable
    ) -> Self:
        """Makes the scale of a layer.

        Args:
            record: The layer's record.
            parameter_name: Of the scale.
            weight_loader: The layer's.
        """
        return cls(
            record=record,
            parameter_name=parameter_name,
            data=torch.empty(cls.shape_for(record), dtype=cls.dtype_of_scale),
            weight_loader=weight_loader,
            **cls.dims,
        )

    @staticmethod
    def shape_for(record: LoadRecord) -> tuple[int, ...]:
        """The shape of the parameter in a layer."""
        raise NotImplementedError

    def clear(self) -> None:
        """Fills the scale with NaN."""
        if self.dtype == torch.float8_e4m3fn:
            self.data.view(torch.uint8).fill_(_E4M3_NAN)
        else:
            self.data.fill_(float("nan"))

    def slot(self, shard: int) -> torch.Tensor:
        """What the parameter has for a shard."""
        raise NotImplementedError

    def is_set(self) -> bool:
        """Whether something has filled it, by the loader or otherwise."""
        return not has_nan(self.data)

    def store(
        self,
        values: torch.Tensor,
        target: torch.Tensor,
        part: Part,
        arrival: ScaleArrival,
    ) -> None:
        """Writes a shard's scales, and records that they came.

        Args:
            values: The scales.
            target: Part of the shard's slot that takes them, of the same shape.
            part: What they are a part of.
            arrival: What to record.

        Raises:
            ValueError: One of them is NaN; nothing was written.
        """
        if has_nan(values):
            raise ValueError(
                f"{self.full_name}, shard {part.shard}: found NaN in a checkpoint "
                f"tensor of dtype {values.dtype}; expected numbers: the checkpoint is "
                "damaged, or was written before it was calibrated"
            )
        target.copy_(values)
        self.record.scales[self.parameter_name, part.shard] = arrival

    def check_dtype(
        self, loaded_weight: torch.Tensor, part: Part, allowed: tuple[torch.dtype, ...]
    ) -> None:
        """Refuses scales of another dtype.

        Raises:
            ValueError: The tensor's dtype is not allowed.
        """
        if loaded_weight.dtype not in allowed:
            raise ValueError(
                f"{self.full_name}, shard {part.shard}: found a checkpoint tensor of "
                f"dtype {loaded_weight.dtype} and shape {tuple(loaded_weight.shape)}; "
                f"expected one of {allowed}: it is the scale of another format"
            )


def as_e8m0(loaded_weight: torch.Tensor) -> torch.Tensor:
    """Views bytes as the E8M0 scales that they are; leaves other dtypes alone."""
    if loaded_weight.dtype == torch.uint8:
        return loaded_weight.view(torch.float8_e8m0fnu)
    return loaded_weight


def has_nan(values: torch.Tensor) -> bool:
    """Whether a scale of any dtype has a NaN in it."""
    if values.dtype == torch.float8_e4m3fn:
        return bool((values.view(torch.uint8) & 0x7F == _E4M3_NAN).any())
    if values.dtype == torch.float8_e8m0fnu:
        return bool((values.view(torch.uint8) == _E8M0_NAN).any())
    return bool(values.isnan().any())


class BlockScale(ScaleLoading, BlockQuantScaleParameter):
    """Scales of blocks, such as 128 by 128: [block rows, block columns], float32.

    Each shard has block rows of its own, so that a shard whose last block is partial
    shares none with the next. Where the slice of a rank may start inside a block, there
    is one more.
    """

    dims = {"input_dim": 1, "output_dim": 0}

    @staticmethod
    def shape_for(record: LoadRecord) -> tuple[int, ...]:
        return sum(_block_rows(record)), _blocks(
            record.cols, record.block[1], record.ranks[1]
        )

    def slot(self, shard: int) -> torch.Tensor:
        rows = _block_rows(self.record)
        start = sum(rows[:shard])
        return self.data[start : start + rows[shard]]

    def rows_of(self, rows: int) -> int:
        return cdiv(rows, self.record.block[0])

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads the scales of the blocks that a part of the weight lies in.

        Args:
            loaded_weight: [block rows, block columns] of the whole weight, or, of
                ModelOpt, [block rows, 1, block columns, 1]; in one of
                `FLOAT_SCALE_DTYPES`, or the bytes of E8M0.
            part: The part of the weight.

        Raises:
            ValueError: The tensor is something else, or has a NaN in it.
        """
        loaded_weight = as_e8m0(loaded_weight)
        self.check_dtype(loaded_weight, part, FLOAT_SCALE_DTYPES)
        rows, cols = self.record.shard_rows[part.shard], self.record.cols
        block = self.record.block
        shape = (
            cdiv(rows * part.row_ranks, block[0]),
            cdiv(cols * part.col_ranks, block[1]),
        )
        if loaded_weight.ndim == 4 and loaded_weight.shape[1::2] == (1, 1):
            loaded_weight = loaded_weight[:, 0, :, 0]
        whole = take_part(loaded_weight, shape, Part(part.shard), self.full_name)
        row, col = part.row_rank * rows, part.col_rank * cols
        first = row // block[0], col // block[1]
        last = cdiv(row + rows, block[0]), cdiv(col + cols, block[1])
        values = whole[first[0] : last[0], first[1] : last[1]]
        arrival = ScaleArrival(loaded_weight.dtype, row % block[0], col % block[1])
        target = self.slot(part.shard)[: values.shape[0], : values.shape[1]]
        self.store(values, target, part, arrival)


def _block_rows(record: LoadRecord) -> list[int]:
    """Rows that a parameter of block scales has for each shard."""
    block, ranks = record.block[0], record.ranks[0]
    return [_blocks(rows, block, ranks) for rows in record.shard_rows]


def _blocks(size: int, block: int, ranks: int) -> int:
    """Blocks that a slice of this size can lie in, wherever it starts."""
    whole = ranks == 1 or size % block == 0
    return cdiv(size, block) if whole else cdiv(size + block - 1, block)


class RowScale(ScaleLoading, ChannelQuantScaleParameter):
    """A scale for each row, or one for all rows of a shard: [rows, 1], float32."""

    dims = {"output_dim": 0}

    @staticmethod
    def shape_for(record: LoadRecord) -> tuple[int, ...]:
        return sum(record.shard_rows), 1

    def slot(self, shard: int) -> torch.Tensor:
        return self.data[self.record.rows(shard)]

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads the scales of some rows.

        Args:
            loaded_weight: [rows] or [rows, 1] of the whole weight, or one element for
                all of them; in one of `FLOAT_SCALE_DTYPES`, or the bytes of E8M0.
            part: The part of the weight.

        Raises:
            ValueError: The tensor is something else, or has a NaN in it.
        """
        loaded_weight = as_e8m0(loaded_weight)
        self.check_dtype(loaded_weight, part, FLOAT_SCALE_DTYPES)
        target = self.slot(part.shard)
        by_row = Part(part.shard, part.row_rank, part.row_ranks)
        if loaded_weight.numel() == 1:
            values = loaded_weight.reshape(1, 1).expand(target.shape)
        else:
            column = loaded_weight
            if column.ndim == 1:
                column = column[:, None]
            values = take_part(column, (len(target), 1), by_row, self.full_name)
        self.store(values, target, part, ScaleArrival(loaded_weight.dtype))


class GroupScale(ScaleLoading, GroupQuantScaleParameter):
    """Scales of groups of columns in a row, one byte each: [rows, cols / 16], E4M3.

    E4M3 scales are of groups of 16. E8M0 scales are of groups of 32, so there are half
    as many: their bytes are in the first half of each row.
    """

    dtype_of_scale = torch.float8_e4m3fn
    dims = {"input_dim": 1, "output_dim": 0}

    @staticmethod
    def shape_for(record: LoadRecord) -> tuple[int, ...]:
        return sum(record.shard_rows), record.cols // 16

    def slot(self, shard: int) -> torch.Tensor:
        return self.data[self.record.rows(shard)]

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads the scales of a part of the weight.

        Args:
            loaded_weight: Of the whole weight: [rows, cols / 16] in `float8_e4m3fn`, or
                [rows, cols / 32] in `float8_e8m0fnu` or its bytes.
            part: The part of the weight.

        Raises:
            ValueError: The tensor is something else, or has a NaN in it.
        """
        e4m3, e8m0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
        self.check_dtype(loaded_weight, part, (e4m3, e8m0, torch.uint8))
        loaded_weight = as_e8m0(loaded_weight)
        group = 16 if loaded_weight.dtype == e4m3 else 32
        if self.record.cols % group:
            raise ValueError(
                f"{self.full_name}: found {self.record.cols} columns on this rank; "
                f"expected a multiple of {group}, which share a scale in "
                f"{loaded_weight.dtype}: choose another tensor-parallel size"
            )
        target = self.slot(part.shard)
        shape = (len(target), self.record.cols // group)
        values = take_part(loaded_weight, shape, part, self.full_name)
        target = target.view(values.dtype)[:, : shape[1]]
        self.store(values, target, part, ScaleArrival(values.dtype))


class ShardScale(ScaleLoading, PerTensorScaleParameter):
    """One scale for each shard: [shards], float32."""

    @staticmethod
    def shape_for(record: LoadRecord) -> tuple[int, ...]:
        return (len(record.shard_rows),)

    def rows_of(self, rows: int) -> int:
        return 0

    def slot(self, shard: int) -> torch.Tensor:
        return self.data[shard : shard + 1]

    def load_part(self, loaded_weight: torch.Tensor, part: Part) -> None:
        """Loads the scale of a shard, whatever the part.

        Args:
            loaded_weight: One element, float32, bfloat16 or float16.
            part: The part of the weight.

        Raises:
            ValueError: The tensor is something else, or NaN.
        """
        self.check_dtype(loaded_weight, part, FLOAT_SCALE_DTYPES[:3])
        if loaded_weight.numel() != 1:
            raise ValueError(
                f"{self.full_name}, shard {part.shard}: found a checkpoint tensor of "
                f"dtype {loaded_weight.dtype} and shape {tuple(loaded_weight.shape)}; "
                "expected one element"
            )
        values = loaded_weight.reshape(1)
        arrival = ScaleArrival(loaded_weight.dtype)
        self.store(values, self.slot(part.shard), part, arrival)


class UnusedScale(ShardScale):
    """A scale that a checkpoint may have and a weight does not need."""
