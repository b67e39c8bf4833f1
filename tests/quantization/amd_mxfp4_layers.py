# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MXFP4 layers of AMD kernels, processed with stand-ins for AITER's operators.

A stand-in gives as many bytes as the operator.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.quantization.keep_param_checks import (
    Outcome,
    load_whole,
    loaded_parameters,
    outcome,
)
from tests.quantization.keep_param_layers import load_experts

NUM_EXPERTS, ROWS, COLUMNS = 10, 8, 64
_KERNEL = "vllm.model_executor.kernels.linear.mxfp4.rdna3_hip"
_EXPERTS = "vllm.model_executor.layers.quantization.mxfp4"
_ONLINE = "vllm.models.muse_spark.amd.muse_moe_runner"


@contextmanager
def aiter() -> Iterator[None]:
    """The modules of AITER that are imported while a layer is processed."""
    modules: dict[str, dict[str, Any]] = {
        "aiter": {"dtypes": SimpleNamespace(i4x2=torch.int8, i8=torch.int8)},
        "aiter.ops.flydsl.kernels.moe_2stage_a16wmix": {"flydsl_a16w4_gemm1": _gemm},
        "aiter.ops.quant": {"per_1x32_i4_quant": _quantize_int4},
        "aiter.ops.shuffle": {
            "pack_int8_to_packed_int4": lambda codes: codes[..., ::2],
            "shuffle_scale_for_int4": lambda scale, group_size: scale,
            "shuffle_weight": lambda codes, layout: codes.flip(1),
        },
        "aiter.utility": {
            "fp4_utils": SimpleNamespace(
                mxfp4_to_f32=lambda packed: _bytes(packed).repeat_interleave(2, -1),
                e8m0_to_f32=_bytes,
            )
        },
        "aiter.ops.triton.quant": {"dynamic_mxfp4_quant": _quantize_mxfp4},
    }
    fakes: dict[str, ModuleType] = {}
    for path, members in modules.items():
        for depth in range(path.count(".") + 1):
            parent = path.rsplit(".", depth)[0]
            fakes.setdefault(parent, ModuleType(parent))
        for name, member in members.items():
            setattr(fakes[path], name, member)
    with (
        mock.patch.dict(sys.modules, fakes),
        mock.patch.object(torch.accelerator, "empty_cache", lambda: None),
    ):
        yield


def _gemm(act: str) -> None:
    """Only its arguments are looked at."""


def _bytes(packed: torch.Tensor) -> torch.Tensor:
    return packed.view(torch.uint8).float()


def _quantize_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = (weight % 8).to(torch.int8).view(-1, weight.shape[-1])
    return codes, weight.reshape(-1, 32)[:, :1].to(torch.bfloat16)


def _quantize_mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = (weight[:, ::2] * 100).to(torch.uint8)
    return codes, (weight[:, ::32] * 10).to(torch.uint8)


def _parameter(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.nn.Parameter:
    param: Any = torch.nn.Parameter(
        torch.empty(shape, dtype=dtype), requires_grad=False
    )
    param.weight_loader = load_experts
    return param


def _run(layer: Any, process: Callable[[Any], None]) -> Outcome:
    loaded = loaded_parameters(layer)
    load_whole(layer, loaded)
    with aiter():
        process(layer)
    return outcome(layer, loaded)


def run_rdna3() -> Outcome:
    """A linear layer of `Rdna3W4A8MxFp4LinearKernel`."""
    kind = import_module(_KERNEL).Rdna3W4A8MxFp4LinearKernel
    layer: Any = torch.nn.Module()
    layer.weight = _parameter(ROWS, COLUMNS // 2)
    layer.weight_scale = _parameter(ROWS, COLUMNS // 32)
    layer.quant_method = kernel = object.__new__(kind)
    return _run(layer, kernel.process_weights_after_loading)


def run_kimi() -> Outcome:
    """Experts of `Mxfp4MoEMethod` that are requantized to int4."""
    kind = import_module(_EXPERTS).Mxfp4MoEMethod
    layer: Any = torch.nn.Module()
    for name in ("w13", "w2"):
        weight = _parameter(NUM_EXPERTS, ROWS, COLUMNS // 2)
        layer.register_parameter(f"{name}_weight", weight)
        scale = _parameter(NUM_EXPERTS, ROWS, COLUMNS // 32)
        layer.register_parameter(f"{name}_weight_scale", scale)
    layer.quant_method = method = object.__new__(kind)
    method.experts_cls = None
    with mock.patch.object(kind, "get_fused_moe_quant_config", lambda *args: None):
        return _run(layer, method._setup_kernel_k3_situ_gfx942)


def run_muse_spark() -> Outcome:
    """Experts of `MuseSparkOnlineMXFP4FusedMoE`, up to what their base class does."""
    kind = import_module(_ONLINE).MuseSparkOnlineMXFP4FusedMoE
    layer: Any = torch.nn.Module()
    for name in ("w13_weight", "w2_weight"):
        weight = _parameter(NUM_EXPERTS, ROWS, COLUMNS, dtype=torch.bfloat16)
        layer.register_parameter(name, weight)
    layer.quant_method = method = object.__new__(kind)
    base = kind.__mro__[1]
    with mock.patch.object(base, "process_weights_after_loading", lambda *args: None):
        return _run(layer, method.process_weights_after_loading)


def run_all() -> dict[str, Outcome]:
    """All three; for a process in which no other test runs."""
    return {run.__name__: run() for run in (run_rdna3, run_kimi, run_muse_spark)}
