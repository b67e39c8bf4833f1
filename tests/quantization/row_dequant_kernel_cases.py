# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Cases of the kernels that unpack rows in place, on a GPU or in Triton's interpreter.

Run as a module, it runs all cases in the interpreter and prints the outcomes as JSON.
The interpreter is chosen when Triton is first imported, so it needs its own process. It
drops the bits that do not fit a bfloat16, where a GPU rounds: `exact` scales, powers of
two, make products that fit.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import torch

from tests.quantization.dequant_layers import random_weight
from tests.quantized_weights import E2M1_VALUES, quantize_nvfp4, unpack_e2m1

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
ROWS = 150


class Case(NamedTuple):
    """Rows to unpack.

    Attributes:
        kind: Of the scales: "block", "row", "e4m3" or "e8m0".
        dtype: Of the unpacked rows.
        cols: Of the weight.
        offset: For block scales, where in its block the first weight is.
    """

    kind: str
    dtype: str
    cols: int
    offset: tuple[int, int] = (0, 0)


CASES = {
    f"{kind}-{dtype}": Case(kind, dtype, 320)
    for kind in ("block", "row", "e4m3", "e8m0")
    for dtype in DTYPES
} | {
    "block-inside": Case("block", "bfloat16", 288, (96, 32)),
    "block-narrow": Case("block", "bfloat16", 64),
    "e4m3-narrow": Case("e4m3", "bfloat16", 16),
    "e4m3-wide": Case("e4m3", "bfloat16", 1056),
}


def run_case(case: Case, device: str, exact: bool) -> bool:
    """Whether a kernel gives the same bits as plain arithmetic."""
    if case.kind in ("block", "row"):
        return _run_fp8(case, device, exact)
    return _run_fp4(case, device, exact)


def _rows(case: Case, packed: torch.Tensor, device: str) -> torch.Tensor:
    """Rows with packed bytes at the start of each, and other bytes after them."""
    rows = torch.empty(ROWS, case.cols, dtype=DTYPES[case.dtype])
    rows.view(torch.uint8).fill_(0xA5)
    rows.view(torch.uint8)[:, : packed.shape[1]] = packed.view(torch.uint8)
    return rows.to(device)


def _scale(shape: tuple[int, ...], exact: bool) -> torch.Tensor:
    exponents = torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 6 - 3
    return torch.exp2(exponents.round() if exact else exponents)


def _run_fp8(case: Case, device: str, exact: bool) -> bool:
    from vllm.model_executor.layers.quantization.utils import row_dequant_kernels

    packed = random_weight(ROWS, case.cols).to(torch.float8_e4m3fn)
    block = (1, 1 << 30) if case.kind == "row" else (128, 128)
    row_blocks = (torch.arange(ROWS) + case.offset[0]) // block[0]
    col_blocks = (torch.arange(case.cols) + case.offset[1]) // block[1]
    scale = _scale((int(row_blocks[-1]) + 1, int(col_blocks[-1]) + 1), exact)
    rows = _rows(case, packed, device)

    row_dequant_kernels.unpack_fp8_rows(rows, scale.to(device), block, case.offset)

    expected = packed.float() * scale[row_blocks][:, col_blocks]
    return torch.equal(rows.cpu(), expected.to(rows.dtype))


def _run_fp4(case: Case, device: str, exact: bool) -> bool:
    from vllm.model_executor.layers.quantization.utils import row_dequant_kernels

    packed, e4m3, _ = quantize_nvfp4(random_weight(ROWS, case.cols))
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    elements = values[unpack_e2m1(packed).long()]
    scale_2: torch.Tensor | None = _scale((1,), exact)
    scale, group = e4m3, 16
    factors = scale.float() * scale_2
    if case.kind == "e8m0":
        factors, group = _scale((ROWS, case.cols // 32), exact=True), 32
        scale, scale_2 = factors.to(torch.float8_e8m0fnu), None
    rows = _rows(case, packed, device)

    row_dequant_kernels.unpack_fp4_rows(
        rows, scale.to(device), None if scale_2 is None else scale_2.to(device)
    )

    expected = elements * factors.repeat_interleave(group, dim=1)
    return torch.equal(rows.cpu(), expected.to(rows.dtype))


@contextmanager
def interpreter() -> Iterator[None]:
    """Where Triton's interpreter is used, in a process that has not imported Triton.

    vLLM's CPU flavour takes a Triton without a CPU compiler for none at all.
    """
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    from vllm import platforms

    with mock.patch.object(platforms, "vllm_version_matches_substr", lambda _: False):
        from vllm.triton_utils import HAS_TRITON
    if not HAS_TRITON:
        raise RuntimeError("vLLM found no Triton; expected it to be installed")
    yield


if __name__ == "__main__":
    with interpreter():
        outcomes = {
            name: run_case(case, "cpu", exact=True) for name, case in CASES.items()
        }
    print(json.dumps(outcomes))
