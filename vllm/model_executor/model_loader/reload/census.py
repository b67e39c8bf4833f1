# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A census: what every tensor of a model is, where it lies and what it contains.

A census holds no tensor and keeps no memory alive. It can be pickled, and saved as
JSON to be compared in another process.
"""

import itertools
import math
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import regex
import torch
from torch.utils.weak import WeakIdKeyDictionary

from .object_references import inner_tensors
from .tensor_digest import dense_parts, tensor_digest
from .tensor_walk import FoundTensor, TensorKind, walk_tensors

__all__ = ["RUNTIME_STATE", "Census", "TensorRecord", "take_census"]

RUNTIME_STATE = ("kv_cache", "topk_indices_buffer")
"""Attributes that requests write to: their addresses matter, their contents do not."""

_KINDS: tuple[TensorKind, ...] = get_args(TensorKind)
_PLURALS: dict[TensorKind, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "attribute": "attributes",
    "off-tree": "off-tree tensors",
}
_NAME_PART = regex.compile(r"[^.\[\]{}]+")

# An `id` is given again once its object is gone; these numbers are not.
_identities: WeakIdKeyDictionary = WeakIdKeyDictionary()
_next_identity = itertools.count(1)
_process_token = uuid.uuid4().hex


@dataclass(frozen=True)
class TensorRecord:
    """One tensor object of a model."""

    names: dict[str, TensorKind]
    """Every name it is held under, the first one registered if any is."""
    type: str
    """Class name, such as `ModelWeightParameter`."""
    identity: int
    """Number of the Python object, never given twice in a process."""
    device: str
    dtype: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    """In elements; None for a layout without strides."""
    nbytes: int
    """Bytes of its elements."""
    address: int | None
    """Of its first element; None without memory of its own, see `note`. That of the
    values for a sparse tensor."""
    storage_address: int | None
    storage_bytes: int
    """Size of the whole storage, of which the tensor may be a part."""
    digest: str | None
    """See `tensor_digest`. None if not asked for, runtime state, or unreadable."""
    runtime_state: bool = False
    note: str = ""
    """Why there is no address, or no digest although one was asked for."""

    @property
    def name(self) -> str:
        """The first of its names."""
        return next(iter(self.names))

    @property
    def device_type(self) -> str:
        """The device without its index."""
        return self.device.partition(":")[0]

    @property
    def kind(self) -> TensorKind:
        """The kind that goes with the first of its names."""
        return next(iter(self.names.values()))


class Memory(NamedTuple):
    """A stretch of memory that the storages of some tensors cover."""

    device: str
    start: int
    end: int
    records: list[TensorRecord]


@dataclass(frozen=True)
class Census:
    """All tensors of a model at one moment."""

    records: tuple[TensorRecord, ...]
    process: str
    """Which process took it. Addresses and identities mean nothing to another one."""
    digested: bool
    """Whether digests were asked for."""
    format: Literal["vllm-weight-census-1"] = "vllm-weight-census-1"

    @cached_property
    def by_name(self) -> dict[str, TensorRecord]:
        """Records under every name."""
        return {name: record for record in self.records for name in record.names}

    @cached_property
    def memory(self) -> list[Memory]:
        """Storages, with overlapping ones as one: no byte is counted twice."""
        held = [r for r in self.records if r.storage_address and r.storage_bytes]
        merged: list[Memory] = []
        for record in sorted(held, key=lambda r: (r.device, r.storage_address)):
            start = record.storage_address or 0
            end = start + record.storage_bytes
            last = merged[-1] if merged else None
            if last and last.device == record.device and start < last.end:
                last.records.append(record)
                merged[-1] = last._replace(end=max(end, last.end))
            else:
                merged.append(Memory(record.device, start, end, [record]))
        return merged

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes of storage by device."""
        totals: Counter[str] = Counter()
        for memory in self.memory:
            totals[memory.device] += memory.end - memory.start
        return dict(totals)

    @property
    def summary(self) -> str:
        """Number of tensors of each kind, and bytes, in one line."""
        counts = Counter(record.kind for record in self.records)
        parts = [f"{counts[kind]} {_PLURALS[kind]}" for kind in _KINDS]
        parts += [f"{size:,} bytes on {d}" for d, size in self.device_bytes.items()]
        if runtime_state := sum(r.runtime_state for r in self.records):
            parts.append(f"{runtime_state} of runtime state (contents not read)")
        if unread := sum(bool(r.note) for r in self.records):
            parts.append(f"{unread} without readable memory")
        return ", ".join(parts)

    def to_json(self) -> str:
        """The census as JSON text; `from_json` reads it back."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Census":
        """Read a census from JSON text.

        Raises:
            ValueError: the text is not a census.

        """
        try:
            census = msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"not a census: {error}. Expected JSON written by `Census.save`; take "
                "the census again"
            ) from error
        names = Counter(name for record in census.records for name in record.names)
        twice = [name for name, count in names.items() if count > 1]
        if twice or not all(record.names for record in census.records):
            raise ValueError(
                f"not a census: {'several tensors' if twice else 'a tensor'} under "
                f"{repr(twice[0]) if twice else 'no name'}. Expected names that stand "
                "for one tensor each; take the census again"
            )
        return census

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the census to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Census":
        """Read a census from a JSON file.

        Raises:
            ValueError: the file is not a census.
            OSError: the file cannot be read.

        """
        try:
            return cls.from_json(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


def take_census(
    model: torch.nn.Module,
    *,
    digest: bool = True,
    runtime_state: Collection[str] = RUNTIME_STATE,
) -> Census:
    """Record every tensor that a model holds: parameters, buffers and all others.

    See `walk_tensors` for what is found and how it is named. One tensor object makes
    one record. Meanwhile nothing may write to the model, and its engine may not sleep.
    A weak reference stays on each tensor, and `torch.utils.swap_tensors` refuses those.

    Args:
        model: the model. It is not written to.
        digest: also digest the contents. Without, a census is a matter of
            milliseconds, and `compare` sees addresses, layouts and objects only.
        runtime_state: attribute names. Tensors under such an attribute are not
            digested, unless they are parameters.

    Returns:
        The census, in the order of `walk_tensors`.

    Raises:
        ValueError: `model` is not a module, or `runtime_state` is a single name.

    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"cannot take a census of a {type(model).__name__}: expected a "
            "torch.nn.Module; pass the module that the wrapper or runner holds"
        )
    if isinstance(runtime_state, str):
        raise ValueError(
            f"runtime_state is {runtime_state!r}: expected a collection of names; "
            f"pass [{runtime_state!r}]"
        )
    holdings: dict[int, list[FoundTensor]] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for found in walk_tensors(model):
            holdings.setdefault(id(found.tensor), []).append(found)
        if digest:
            _synchronize({held[0].tensor.device for held in holdings.values()})
        taker = _Taker(digest, frozenset(runtime_state))
        records = tuple(taker.record(held) for held in holdings.values())
    return Census(records, _current_process(), digest)


def _current_process() -> str:
    # The pid tells a forked process from its parent.
    return f"{_process_token}-{os.getpid()}"


def _synchronize(devices: Iterable[torch.device]) -> None:
    accelerator = torch.accelerator.current_accelerator()
    for device in devices:
        if accelerator is not None and device.type == accelerator.type:
            torch.accelerator.synchronize(device)


class _Taker:
    """Makes records, and digests each stretch of memory once."""

    def __init__(self, digest: bool, runtime_state: frozenset[str]):
        self.digest = digest
        self.runtime_state = runtime_state
        self.digests: dict[tuple, str] = {}

    def record(self, held: list[FoundTensor]) -> TensorRecord:
        """Describe the tensor that is held under all of the given names."""
        held = sorted(held, key=lambda found: _KINDS.index(found.kind))
        tensor = held[0].tensor
        names = {found.name: found.kind for found in held}
        runtime_state = self._is_runtime_state(names)
        shape, stride = _layout(tensor)
        numel = 0 if shape is None else math.prod(shape)
        address, storage_address, storage_bytes, note = _memory(tensor)
        digest = None
        if self.digest and address is not None and not runtime_state:
            try:
                digest = self._digest(tensor)
            except Exception as error:  # whatever the code of a subclass raises
                note = _first_line(error)
        return TensorRecord(
            names=names,
            type=type(tensor).__name__,
            identity=_identity(tensor),
            device=str(tensor.device),
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=shape,
            stride=stride,
            nbytes=numel * tensor.dtype.itemsize,
            address=address,
            storage_address=storage_address,
            storage_bytes=storage_bytes,
            digest=digest,
            runtime_state=runtime_state,
            note=note,
        )

    def _is_runtime_state(self, names: dict[str, TensorKind]) -> bool:
        parts = {part for name in names for part in _NAME_PART.findall(name)}
        return "parameter" not in names.values() and bool(parts & self.runtime_state)

    def _digest(self, tensor: torch.Tensor) -> str:
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor_digest(tensor)
        place = tensor.device, tensor.data_ptr()
        key = (*place, tensor.size(), tensor.stride(), tensor.itemsize)
        if key not in self.digests:
            self.digests[key] = tensor_digest(tensor)
        return self.digests[key]


def _identity(tensor: torch.Tensor) -> int:
    if (identity := _identities.get(tensor)) is None:
        identity = _identities[tensor] = next(_next_identity)
    return identity


def _layout(
    tensor: torch.Tensor,
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Shape and stride, None where a layout has none."""
    try:
        shape = tuple(tensor.size())
    except (RuntimeError, ValueError):  # nested tensors
        return None, None
    if not all(type(size) is int for size in shape):  # symbolic
        return None, None
    return shape, tensor.stride() if tensor.layout == torch.strided else None


def _memory(tensor: torch.Tensor) -> tuple[int | None, int | None, int, str]:
    """Address, address and bytes of the storage, and why there is none."""
    if inner := inner_tensors(tensor):
        return None, None, 0, f"wraps {', '.join(inner)}"
    try:
        values = dense_parts(tensor)[-1]
        storage = values.untyped_storage()
        if storage.device.type == "meta":
            return None, None, 0, "on meta"
        return values.data_ptr(), storage.data_ptr(), storage.nbytes(), ""
    except Exception as error:  # whatever the code of a subclass raises
        return None, None, 0, _first_line(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
