# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reads tensors as a captured CUDA graph does: at the addresses of its capture.

    captured = CapturedReads(model, ["model.layers.1.indexer._wp_fp32"])
    ...  # reload
    assert not captured.differences()

A graph holds no reference to what it reads. Neither does this: the storage of a tensor
that was replaced may be freed, and then be overwritten by others. Such an address is
read only where the storage is known to be alive, so that a test fails and does not
crash.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any
from weakref import ref

import torch

__all__ = ["CapturedReads", "lookup"]


@dataclass(frozen=True)
class _Read:
    """What a graph has baked in of one tensor."""

    path: str
    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    storage: ref

    def bytes_there(self) -> torch.Tensor | None:
        """The elements at the address now, or None where the memory was freed."""
        if self.storage() is None:
            return None
        extent = 1 + sum(
            (size - 1) * stride
            for size, stride in zip(self.shape, self.stride, strict=True)
        )
        memory = ctypes.string_at(self.address, extent * self.dtype.itemsize)
        flat = torch.frombuffer(bytearray(memory), dtype=torch.uint8).view(self.dtype)
        return flat.as_strided(self.shape, self.stride)


class CapturedReads:
    """The tensors that a graph captured now would read, by path from one object."""

    def __init__(self, root: object, paths: Iterable[str]):
        """Records addresses and layouts.

        Args:
            root: Object that the paths start from.
            paths: Attribute names, list indices and dict keys, joined by dots.

        Raises:
            ValueError: A path leads to something else than a tensor with elements on
                the CPU, or there is no path.
        """
        self.root = root
        self.reads = [_record(root, path) for path in paths]
        if not self.reads:
            raise ValueError("there is nothing to read: expected at least one path")

    def differences(self) -> list[str]:
        """What a replay would read wrongly, one line a tensor.

        Returns:
            The paths whose live tensor lies elsewhere or in another layout, or where
            the recorded address has other bytes.
        """
        found = []
        for read in self.reads:
            live = lookup(self.root, read.path)
            if (reason := _difference(read, live)) is not None:
                found.append(f"{read.path}: {reason}")
        return found


def lookup(root: object, path: str) -> Any:
    """Follows attribute names, list indices and dict keys, joined by dots."""
    return reduce(_step, path.split("."), root)


def _step(holder: object, key: str) -> object:
    if isinstance(holder, (list, tuple)):
        return holder[int(key)]
    if isinstance(holder, dict):
        return holder[key] if key in holder else holder[int(key)]
    return getattr(holder, key)


def _record(root: object, path: str) -> _Read:
    tensor = lookup(root, path)
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.device.type != "cpu"
        or tensor.numel() == 0
    ):
        raise ValueError(
            f"{path} is {type(tensor).__name__}; expected a tensor with elements, on "
            "the CPU"
        )
    return _Read(
        path,
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        ref(tensor.untyped_storage()),
    )


def _difference(read: _Read, live: object) -> str | None:
    if not isinstance(live, torch.Tensor):
        return f"is now a {type(live).__name__}"
    layout = (live.shape, live.stride(), live.dtype)
    if layout != (read.shape, read.stride, read.dtype):
        return f"is now {live.dtype} {tuple(live.shape)} with strides {live.stride()}"
    if live.data_ptr() != read.address:
        return f"moved from {read.address:#x} to {live.data_ptr():#x}"
    there = read.bytes_there()
    if there is None:
        return f"its storage at {read.address:#x} was freed"
    live_bytes = live.detach().contiguous().view(-1).view(torch.uint8)
    if not torch.equal(there.contiguous().view(-1).view(torch.uint8), live_bytes):
        return f"other bytes lie at {read.address:#x}"
    return None
