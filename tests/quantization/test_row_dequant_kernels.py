# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The kernels that unpack rows in place are bit-exact."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.quantization import row_dequant_kernel_cases
from tests.quantization.row_dequant_kernel_cases import CASES, run_case


@pytest.fixture(scope="module")
def interpreted() -> dict[str, bool]:
    """Whether each case is right in Triton's interpreter."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    command = [sys.executable, "-m", row_dequant_kernel_cases.__name__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_interpreted_kernel_is_exact(name: str, interpreted: dict[str, bool]):
    assert interpreted[name]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_kernel_is_exact(name: str, exact: bool):
    assert run_case(CASES[name], "cuda", exact)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["block", "e4m3"])
def test_compiled_kernel_unpacks_long_rows(kind: str):
    case = row_dequant_kernel_cases.Case(kind, "bfloat16", 16384)

    assert run_case(case, "cuda", exact=False)
