# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Experts objects that hold constants, as post-load processing makes them.

One table, for stock vLLM and for the series. Kernels do not run; the constructors and
post-load steps do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

import torch

_MOE = "vllm.model_executor.layers.fused_moe"
NUM_EXPERTS = 4
SIZE = 64


@dataclass(frozen=True)
class Case:
    """How to make an experts object, and what it holds.

    Attributes:
        make: Makes the object; of another run, it has other values.
        constants: Paths to the constants from the object.
        has_step: Whether its own post-load step runs too.
    """

    make: Callable[[int], Any]
    constants: tuple[str, ...]
    has_step: bool = False


@contextmanager
def accelerator() -> Iterator[None]:
    """The device on which TRTLLM's experts make their constants."""
    cpu = torch.device("cpu")
    with mock.patch.object(torch.accelerator, "current_device_index", lambda: cpu):
        yield


def _moe_config(**fields: Any) -> Any:
    config = import_module(f"{_MOE}.config")
    activation = import_module(f"{_MOE}.activation").MoEActivation
    defaults: dict[str, Any] = {
        "num_experts": NUM_EXPERTS,
        "experts_per_token": 2,
        "hidden_dim": SIZE,
        "intermediate_size": SIZE,
        "num_local_experts": NUM_EXPERTS,
        "num_logical_experts": NUM_EXPERTS,
        "activation": activation.SILU,
        "device": "cpu",
        "routing_method": config.RoutingMethodType.Renormalize,
        "moe_parallel_config": config.FusedMoEParallelConfig.make_no_parallel(),
        "in_dtype": torch.bfloat16,
    }
    return config.FusedMoEConfig(**(defaults | fields))


def _situ(run: int) -> Any:
    activation = import_module(f"{_MOE}.activation").MoEActivation
    return _moe_config(
        activation=activation.SITU,
        activation_situ_beta=1.0 + run,
        activation_situ_linear_beta=2.0 + run,
    )


def _experts(module: str, name: str, *arguments: Any, **rest: Any) -> Any:
    return getattr(import_module(f"{_MOE}.experts.{module}"), name)(*arguments, **rest)


def scales(run: int, count: int = 1) -> list[torch.Tensor]:
    """Scales of the experts, other ones in each run; float32, ``[NUM_EXPERTS]``."""
    generator = torch.Generator().manual_seed(run)
    return [torch.rand(NUM_EXPERTS, generator=generator) + 0.5 for _ in range(count)]


def _swiglu(run: int) -> dict[str, float]:
    return {
        "gemm1_alpha": 1.5 + run,
        "gemm1_beta": 1.0 + run,
        "gemm1_clamp_limit": 7.0 + run,
    }


def _mxfp4(run: int, **fields: Any) -> Any:
    config = import_module(f"{_MOE}.config")
    return config.mxfp4_mxfp8_moe_quant_config(*scales(run, 2), **fields)


def _fp8(run: int, **fields: Any) -> Any:
    config = import_module(f"{_MOE}.config")
    return config.fp8_w8a8_moe_quant_config(*scales(run, 4), **fields)


def _fp8_per_token(run: int) -> Any:
    config = import_module(f"{_MOE}.config")
    return config.fp8_w8a8_moe_quant_config(
        *scales(run, 2), per_act_token_quant=True, per_out_ch_quant=True
    )


def _mxfp8(run: int) -> Any:
    config = import_module(f"{_MOE}.config")
    weights = scales(run, 2)
    return config.FusedMoEQuantConfig.make(
        "mxfp8",
        w1_scale=weights[0],
        w2_scale=weights[1],
        block_shape=[1, 32],
        **_swiglu(run),
    )


def _nvfp4(run: int, **fields: float) -> Any:
    config = import_module(f"{_MOE}.config")
    g1, g2, a1, a2, w1, w2 = scales(run, 6)
    return config.nvfp4_moe_quant_config(
        g1, g2, 1.0 / a1, 1.0 / a2, w1, w2, is_scale_swizzled=False, **fields
    )


def _w4a8(run: int) -> Any:
    strides = torch.full((2, NUM_EXPERTS, 2), run + 1, dtype=torch.int64)
    return _experts(
        "cutlass_moe",
        "CutlassExpertsW4A8Fp8",
        _moe_config(hidden_dim=SIZE * (run + 1)),
        _fp8_per_token(run),
        strides[0].clone(),
        strides[1].clone(),
        group_size=128,
    )


_SWIGLU = ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")
_STRIDES = ("ab_strides1", "ab_strides2", "c_strides1", "c_strides2")


def cases() -> dict[str, Case]:
    """The table, by name."""
    return _trtllm() | _trtllm_nvfp4() | _flashinfer() | _cutlass()


def _lora(has_bias: bool) -> Callable[[int], Any]:
    def make(run: int) -> Any:
        bias = torch.zeros(NUM_EXPERTS, 4 * SIZE) if has_bias else None
        quant_config = _mxfp4(run, w1_bias=bias, **_swiglu(run))
        name = "TrtLlmMxfp4LoRAExperts"
        return _experts("trtllm_lora_moe", name, _moe_config(), quant_config)

    return make


def _trtllm() -> dict[str, Case]:
    def mxfp4(module: str, name: str, has_situ: bool = False) -> Callable[[int], Any]:
        def make(run: int) -> Any:
            config = _situ(run) if has_situ else _moe_config()
            return _experts(module, name, config, _mxfp4(run, **_swiglu(run)))

        return make

    def fp8(name: str, quant_config: Callable[[int], Any]) -> Callable[[int], Any]:
        return lambda run: _experts(
            "trtllm_fp8_moe", name, _moe_config(), quant_config(run)
        )

    module = "trtllm_mxfp4_moe"
    per_tensor = ("_g1_alphas", "_g2_alphas", "_g1_scale_c")
    return {
        "mxfp4": Case(mxfp4(module, "TrtLlmMxfp4ExpertsMonolithic"), _SWIGLU),
        "mxfp4-modular": Case(mxfp4(module, "TrtLlmMxfp4ExpertsModular"), _SWIGLU),
        "mxfp4-situ": Case(
            mxfp4(module, "TrtLlmMxfp4ExpertsMonolithic", True), _SWIGLU[:2]
        ),
        "mxfp4-lora": Case(_lora(has_bias=False), _SWIGLU),
        "mxfp4-lora-bias": Case(
            _lora(has_bias=True), (*_SWIGLU, "_w13_bias_up_gate_index")
        ),
        "mxfp8": Case(fp8("TrtLlmFp8ExpertsModular", _mxfp8), _SWIGLU),
        "mxfp8-monolithic": Case(fp8("TrtLlmFp8ExpertsMonolithic", _mxfp8), _SWIGLU),
        "fp8": Case(fp8("TrtLlmFp8ExpertsMonolithic", _fp8), per_tensor),
    }


def _trtllm_nvfp4() -> dict[str, Case]:
    def make(name: str, has_situ: bool = False) -> Callable[[int], Any]:
        return lambda run: _experts(
            "trtllm_nvfp4_moe",
            name,
            _situ(run) if has_situ else _moe_config(),
            _nvfp4(run, **_swiglu(run)),
        )

    constants = ("g1_scale_c", *_SWIGLU)
    made = {
        "nvfp4": (make("TrtLlmNvFp4ExpertsMonolithic"), constants),
        "nvfp4-modular": (make("TrtLlmNvFp4ExpertsModular"), constants),
        "nvfp4-situ": (make("TrtLlmNvFp4ExpertsMonolithic", True), constants[:3]),
    }
    return {name: Case(*case) for name, case in made.items()} | {
        f"{name}-step": Case(*case, has_step=True) for name, case in made.items()
    }


def _flashinfer() -> dict[str, Case]:
    def cutlass(quant_config: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda run: _experts(
            "flashinfer_cutlass_moe",
            "FlashInferExperts",
            _moe_config(),
            quant_config(run, **_swiglu(run)),
        )

    return {
        "flashinfer-nvfp4": Case(cutlass(_nvfp4), _SWIGLU),
        "flashinfer-fp8": Case(cutlass(_fp8), _SWIGLU),
        "flashinfer-mxfp4": Case(cutlass(_mxfp4), (*_SWIGLU, "fake_input_scale")),
        "cutedsl-per-token": Case(
            lambda run: _experts(
                "flashinfer_cutedsl_moe",
                "FlashInferCuteDSLExperts",
                _moe_config(),
                _nvfp4(run),
                per_token_activation=True,
            ),
            ("per_token_global_scale",),
        ),
    }


def _cutlass() -> dict[str, Case]:
    def fp8(module: str, name: str, **rest: int) -> Callable[[int], Any]:
        return lambda run: _experts(
            module,
            name,
            _moe_config(hidden_dim=SIZE * (run + 1)),
            _fp8_per_token(run),
            **rest,
        )

    return {
        "cutlass-fp8": Case(fp8("cutlass_moe", "CutlassExpertsFp8"), _STRIDES),
        "cutlass-fp8-batched": Case(
            fp8(
                "cutlass_moe",
                "CutlassBatchedExpertsFp8",
                max_num_tokens=8,
                num_dispatchers=1,
            ),
            _STRIDES,
        ),
        "triton-or-cutlass": Case(
            fp8("triton_cutlass_moe", "TritonOrCutlassExperts"),
            tuple(f"experts.{name}" for name in _STRIDES),
        ),
        "cutlass-w4a8": Case(
            _w4a8,
            tuple(f"{kind}_strides{gemm}" for kind in "abcs" for gemm in (1, 2)),
        ),
    }
