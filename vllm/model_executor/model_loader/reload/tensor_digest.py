# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Digest of a tensor's bytes, in bounded memory, for every dtype and device."""

from collections.abc import Iterator

import torch
from blake3 import blake3

__all__ = ["dense_parts", "tensor_digest"]

CHUNK_BYTES = 16 * 1024**2
DIGEST_BYTES = 16

# Bytes are moved under a dtype of the same size that every device can copy: several
# dtypes have no copy kernel, and a float copy need not keep the bits of a NaN.
_CARRIERS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}
_COMPRESSED_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def tensor_digest(tensor: torch.Tensor, chunk_bytes: int = CHUNK_BYTES) -> str:
    """Digest the elements of a tensor as bytes, so that NaN payloads count.

    Elements are read in the order of memory, from the largest stride to the smallest:
    two tensors of equal shape, stride and item size have equal digests if and only if
    they are byte-equal. Gaps between elements are left out, and elements that overlap,
    as in an expanded tensor, are read once. A sparse tensor is digested by its indices
    and values.

    Args:
        tensor: any dtype, shape, stride and device that has memory. At most one chunk
            of it is copied at a time.
        chunk_bytes: bytes per chunk. It does not change the digest.

    Returns:
        Hexadecimal BLAKE3 digest of 16 bytes.

    Raises:
        RuntimeError: the tensor has no bytes to read, such as a meta tensor.

    """
    hasher = blake3(max_threads=blake3.AUTO)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        for part in dense_parts(tensor):
            for chunk in _byte_chunks(_in_memory_order(part), chunk_bytes):
                hasher.update(chunk.cpu().numpy().data)
    return hasher.hexdigest(length=DIGEST_BYTES)


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the data: indices and values of a sparse one, or itself."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if names := _COMPRESSED_INDICES.get(tensor.layout):
        return [*(getattr(tensor, name)() for name in names), tensor.values()]
    return [tensor]


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements under a carrier dtype, strides descending, overlaps once."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        raise RuntimeError(f"a {type(tensor).__name__} on meta has no bytes to digest")
    dims = sorted(zip(tensor.stride(), tensor.size(), strict=True), reverse=True)
    stride, shape = [step for step, _ in dims], [size for _, size in dims]
    span = 1 + sum(step * (size - 1) for step, size in dims)
    if tensor.numel() > max(span, 0):
        stride, shape = [1], [span]
    carrier = torch.empty(0, dtype=_CARRIERS[tensor.itemsize], device=storage.device)
    # `set_` with a shape would enlarge a storage that is too small; this raises.
    return carrier.set_(storage).as_strided(shape, stride, tensor.storage_offset())


def _byte_chunks(raw: torch.Tensor, chunk_bytes: int) -> Iterator[torch.Tensor]:
    """Consecutive pieces of a tensor, each flat uint8."""
    if raw.is_contiguous():
        # Not `view(-1)`, which keeps the stride that a single element may have.
        flat = raw.as_strided([raw.numel()], [1])
        for chunk in flat.split(max(1, chunk_bytes // raw.itemsize)):
            yield chunk.view(torch.uint8)
    elif raw.nbytes <= chunk_bytes:
        yield raw.contiguous().view(-1).view(torch.uint8)
    else:
        rows = chunk_bytes // (raw.nbytes // len(raw))
        for piece in raw.split(rows) if rows else raw.unbind():
            yield from _byte_chunks(piece, chunk_bytes)
