# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Digests stand for bytes: of every dtype and layout, and in bounded memory."""

import pytest
import torch
from blake3 import blake3
from torch.utils._python_dispatch import TorchDispatchMode

from vllm.model_executor.model_loader.reload.tensor_digest import tensor_digest

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint4,  # type: ignore[attr-defined]
    torch.float4_e2m1fn_x2,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]


def of_bytes(data: bytes) -> str:
    return blake3(data).hexdigest(length=16)


def counting(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor whose storage holds 0, 1, 2, ... as bytes."""
    size = torch.Size(shape).numel() * dtype.itemsize
    data = torch.arange(size).to(torch.uint8)
    return torch.empty(0, dtype=dtype).set_(data.untyped_storage()).view(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_digest_of_a_dense_tensor_is_that_of_its_bytes(dtype):
    tensor = counting(dtype, 3, 4)

    assert tensor_digest(tensor) == of_bytes(bytes(range(12 * dtype.itemsize)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gaps_between_elements_are_left_out(dtype):
    size = dtype.itemsize
    columns = counting(dtype, 2, 4)[:, 1:3]

    expected = bytes([*range(size, 3 * size), *range(5 * size, 7 * size)])
    assert tensor_digest(columns) == of_bytes(expected)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,)])
def test_scalars_and_empty_tensors_have_a_digest(shape):
    tensor = counting(torch.float32, *shape)

    assert tensor_digest(tensor) == of_bytes(bytes(range(tensor.nbytes)))


def test_a_single_element_may_have_any_stride():
    element = counting(torch.int32, 1, 4)[:, 1:2]

    assert element.stride() == (4, 1)
    assert tensor_digest(element) == of_bytes(bytes(range(4, 8)))
    assert tensor_digest(element.t()[0]) == of_bytes(bytes(range(4, 8)))


def test_nan_payloads_and_signed_zeros_count():
    bits = [0x7FC00000, 0x7FC00001, 0xFFC00000 - 2**32, 0, -(2**31)]
    scalars = [torch.tensor([b], dtype=torch.int32).view(torch.float32) for b in bits]

    assert len({tensor_digest(scalar) for scalar in scalars}) == len(bits)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.transpose(0, 2),
        lambda t: t[:, 1:, ::2],
        lambda t: t[1],
        lambda t: t.permute(1, 2, 0)[2:],
        lambda t: t[:, :, 0:1].expand(-1, -1, 9),
    ],
)
def test_the_chunk_size_does_not_change_the_digest(view, chunk_bytes):
    tensor = view(counting(torch.int16, 5, 6, 7))

    assert tensor_digest(tensor, chunk_bytes) == tensor_digest(tensor)


def test_an_expanded_tensor_is_read_once():
    huge = torch.tensor([1.0]).expand(10**6, 10**9)

    assert tensor_digest(huge) == tensor_digest(torch.tensor([1.0]))


def test_conjugate_views_are_read_as_what_they_mean():
    value = torch.tensor([1 + 2j])

    assert tensor_digest(value.conj()) == tensor_digest(torch.tensor([1 - 2j]))


@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_sparse_tensors_are_digested_by_indices_and_values(layout):
    def sparse(dense: torch.Tensor) -> torch.Tensor:
        return dense.to_sparse(layout=getattr(torch, layout))

    eye, flipped = torch.eye(3), torch.eye(3).flip(0)

    assert tensor_digest(sparse(eye)) == tensor_digest(sparse(eye.clone()))
    assert tensor_digest(sparse(eye)) != tensor_digest(sparse(2 * eye))
    assert tensor_digest(sparse(eye)) != tensor_digest(sparse(flipped))


def test_a_meta_tensor_is_refused():
    with pytest.raises(RuntimeError, match="meta"):
        tensor_digest(torch.empty(2, device="meta"))


def test_a_freed_storage_is_refused_and_stays_freed():
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)

    with pytest.raises(RuntimeError, match="out of bounds"):
        tensor_digest(tensor)
    assert tensor.untyped_storage().nbytes() == 0


class LargestAllocation(TorchDispatchMode):
    """Bytes of the largest tensor that an operation returns in new memory."""

    def __init__(self, known: torch.Tensor):
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if tensor.untyped_storage().data_ptr() != self.known:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t.t(), lambda t: t[:, 1:], lambda t: t[:, ::2].t()]
)
def test_no_more_than_a_chunk_is_copied_at_a_time(view):
    tensor = torch.zeros(256, 256)

    with LargestAllocation(tensor) as largest:
        tensor_digest(view(tensor), chunk_bytes=4096)

    assert largest.nbytes <= 4096


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.t(), lambda t: t[:, 1:]])
def test_digest_does_not_depend_on_the_device(view):
    tensor = counting(torch.bfloat16, 100, 100)

    assert tensor_digest(view(tensor.cuda())) == tensor_digest(view(tensor))
