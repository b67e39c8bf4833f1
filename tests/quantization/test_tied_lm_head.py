# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The quantized copy of an lm_head, which starts on the storage of the original."""

import pytest
import torch

from tests.quantization.keep_param_checks import quantization_process
from tests.quantization.keep_param_layers import fp8_kernel
from vllm.model_executor.layers.quantization.online import fp8, lm_head
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


def test_a_quantized_copy_leaves_the_lm_head(monkeypatch: pytest.MonkeyPatch):
    make = fp8_kernel(
        "pytorch", "PerTensorTorchFP8ScaledMMLinearKernel", "kFp8StaticTensorSym"
    )
    monkeypatch.setattr(fp8, "init_fp8_linear_kernel", lambda **arguments: make())
    with quantization_process():
        original = ParallelLMHead(64, 32, params_dtype=torch.bfloat16)
        original.weight.data.normal_(generator=torch.Generator().manual_seed(0))
        address, before = original.weight.data_ptr(), original.weight.clone()

        copy = lm_head.quantized_lm_head_copy(original, "fp8")

    assert copy.weight.dtype == torch.float8_e4m3fn
    assert original.weight.data_ptr() == address
    assert torch.equal(original.weight, before)
