# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The output projection of DeepSeek-V4 on CPU keeps what it loads."""

from collections.abc import Iterator

import pytest
import torch

from tests.quantization.keep_param_checks import (
    load,
    loaded_parameters,
    outcome,
    quantization_process,
    restore_model_format,
)
from tests.quantization.keep_param_layers import (
    INPUT_SIZE,
    OUTPUT_SIZES,
    QUANTIZATION,
    make_kernel,
    make_linear,
)
from vllm.model_executor.utils import kernel_parameters

GROUPS = 2


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def _block_fp8_kernel() -> object:
    """Whatever it is, it leaves a weight alone that is not multiplied by a linear."""
    from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
        FP8ScaledMMLinearLayerConfig,
    )
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        kFp8Dynamic128Sym,
        kFp8Static128BlockSym,
    )

    config = FP8ScaledMMLinearLayerConfig(
        weight_quant_key=kFp8Static128BlockSym,
        activation_quant_key=kFp8Dynamic128Sym,
        weight_shape=(sum(OUTPUT_SIZES), INPUT_SIZE),
        input_dtype=torch.bfloat16,
        out_dtype=torch.bfloat16,
    )
    return make_kernel("scaled_mm.cpu", "CPUFp8BlockScaledMMKernel", config)


def _fp8() -> torch.nn.Module:
    return make_linear(
        f"{QUANTIZATION}.fp8",
        lambda m: m.Fp8LinearMethod(
            m.Fp8Config(activation_scheme="dynamic", weight_block_size=[128, 128])
        ),
        "init_fp8_linear_kernel",
        _block_fp8_kernel,
    )


def _bf16() -> torch.nn.Module:
    return make_linear(
        "vllm.model_executor.layers.linear", lambda m: m.UnquantizedLinearMethod()
    )


def _attention(wo_a: torch.nn.Module) -> torch.nn.Module:
    """An attention layer, as far as the processing of its `wo_a` goes."""
    from vllm.models.deepseek_v4.cpu.cpu_sparse import DeepseekV4CPUAttention

    attention = DeepseekV4CPUAttention.__new__(DeepseekV4CPUAttention)
    torch.nn.Module.__init__(attention)
    attention.wo_a = wo_a  # type: ignore[assignment]
    attention.n_local_heads, attention.n_local_groups = 4, GROUPS
    attention.head_dim = INPUT_SIZE * GROUPS // 4
    attention.o_lora_rank = sum(OUTPUT_SIZES) // GROUPS
    attention._wrap_wo_a_process_weights_after_loading()
    return attention


@pytest.mark.parametrize("build", [_fp8, _bf16])
def test_wo_a_holds_its_packed_weight_in_the_loaded_parameter(build):
    layer = build()
    loaded = loaded_parameters(layer)
    attention = _attention(layer)
    load(layer, loaded)

    layer.quant_method.process_weights_after_loading(layer)

    first = outcome(layer, loaded)
    assert first.losses == []
    assert set(kernel_parameters(layer)) == {"weight"}
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.shape[0] == GROUPS
    assert list(dict(attention.named_parameters())) == [f"wo_a.{n}" for n in loaded]

    restore_model_format(loaded)
    load(layer, loaded)
    layer.quant_method.process_weights_after_loading(layer)

    again = outcome(layer, loaded)
    assert again.losses == []
    assert again.values == first.values
