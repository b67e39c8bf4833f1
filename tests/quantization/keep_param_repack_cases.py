# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that kernels for CPU, XPU, Marlin and CUTLASS repack; a part of the table."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from tests.quantization.keep_param_layers import (
    CT,
    QUANTIZATION,
    Case,
    fp8_kernel,
    int8_kernel,
    make_linear,
    mp_kernel,
)
from tests.quantization.keep_param_operators import ArkLinear

GROUP_SIZE = 64
_MIXED_PRECISION = "vllm.model_executor.kernels.linear.mixed_precision"


def repack_cases() -> dict[str, Case]:
    """A part of the table, by name."""
    fp8 = "init_fp8_linear_kernel"
    channelwise = fp8_kernel(
        "pytorch", "ChannelWiseTorchFP8ScaledMMLinearKernel", "kFp8StaticTokenSym"
    )
    tensorwise = fp8_kernel(
        "pytorch", "PerTensorTorchFP8ScaledMMLinearKernel", "kFp8StaticTensorSym"
    )
    return {
        **_cpu_cases(),
        **_zentorch_cases(),
        "ct-w4a8-int-kleidi-channel": _int4_in_int8("Dynamic4bit", "dynamic_4bit"),
        "ct-w4a8-int-kleidi-group": _int4_in_int8(
            "Dynamic4bit", "dynamic_4bit", GROUP_SIZE
        ),
        "ct-w4a8-int-xpu": _int4_in_int8("XPUW4A8Int", "xpu", GROUP_SIZE),
        "ct-w4a8-fp8-cutlass": _cutlass_case(),
        "inc-xpu": _inc("INCXPULinearMethod", "auto_gptq"),
        "inc-xpu-awq": _inc("INCXPULinearMethod", "auto_awq"),
        "inc-ark": _inc("INCARKLinearMethod", "auto_gptq"),
        "ct-w8a16-channel-static": Case(
            lambda: make_linear(
                f"{CT}w8a16_fp8",
                lambda m: m.CompressedTensorsW8A16Fp8(_fp8_channels(), True),
                "init_wfp8_a16_linear_kernel",
                fp8_kernel(
                    "marlin", "MarlinFP8ScaledMMLinearKernel", "kFp8StaticTokenSym"
                ),
            )
        ),
        "fbgemm-marlin": Case(
            lambda: make_linear(
                f"{QUANTIZATION}.fbgemm_fp8", _fbgemm_method, fp8, channelwise
            )
        ),
        "fp8-static": Case(
            lambda: make_linear(
                f"{QUANTIZATION}.fp8",
                lambda m: m.Fp8LinearMethod(m.Fp8Config(activation_scheme="static")),
                fp8,
                tensorwise,
            )
        ),
        "ct-int8-zentorch": Case(
            lambda: make_linear(
                f"{CT}w8a8_int8",
                lambda m: m.CompressedTensorsW8A8Int8("channel", False, True),
                "init_int8_linear_kernel",
                int8_kernel("Zentorch", False, True, channelwise=True),
            )
        ),
    }


def _cpu_cases() -> dict[str, Case]:
    w4a16, w4a8 = _amx(False), _amx(True)
    zero_points = frozenset({"qzeros"})
    return {
        "gptq-cpu": replace(_gptq_cpu(), processing=w4a16),
        # Stock puts a made-up zero point there; `read[2]` has what the kernel reads.
        "gptq-cpu-w4a8": replace(_gptq_cpu(), processing=w4a8, renamed=zero_points),
        "ct-cpu": _packed("CPUWNA16", "cpu", True, w4a16),
        "ct-cpu-asymmetric": _packed("CPUWNA16", "cpu", False, w4a16),
        "ct-cpu-w4a8": _packed(
            "CPUWNA16", "cpu", True, w4a8, frozenset({"weight_zero_point"})
        ),
        "ct-cpu-w4a8-asymmetric": _packed("CPUWNA16", "cpu", False, w4a8),
    }


def _zentorch_cases() -> dict[str, Case]:
    # Stock empties these. Its kernel reads the plain attributes.
    emptied = {"weight_packed", "weight_scale", "weight_zero_point"}
    attributes = {
        f"_zentorch_{kind}_{name}"
        for kind in ("woq", "da8w4")
        for name in ("packed", "scale", "zero_point")
    }
    renamed = frozenset(emptied | attributes | {"read[0]", "read[1]", "read[2]"})
    kernel = "ZentorchWNA16", "zentorch"
    return {
        "ct-zentorch-da8w4": _packed(*kernel, True, _zentorch(True), renamed),
        "ct-zentorch-woq": _packed(*kernel, True, _zentorch(False), renamed),
        "ct-zentorch-asymmetric": _packed(*kernel, False, _zentorch(False), renamed),
    }


def _gptq_cpu() -> Case:
    """GPTQ checkpoints have zero points even where they are symmetric."""

    def make(module: Any) -> Any:
        config = module.AutoGPTQConfig(4, GROUP_SIZE, False, True, False, {}, {})
        with mock.patch.object(module, "verify_marlin_supported"):
            return module.AutoGPTQLinearMethod(config)

    return Case(
        lambda: make_linear(
            f"{QUANTIZATION}.auto_gptq",
            make,
            "choose_mp_linear_kernel",
            lambda: mp_kernel("CPUWNA16", "cpu"),
        )
    )


def _packed(
    kernel: str,
    module: str,
    symmetric: bool,
    processing: Callable[[], Any],
    renamed: frozenset[str] = frozenset(),
) -> Case:
    return Case(
        lambda: make_linear(
            f"{CT}wNa16",
            lambda m: m.CompressedTensorsWNA16("group", 4, GROUP_SIZE, symmetric),
            "choose_mp_linear_kernel",
            lambda: mp_kernel(kernel, module),
        ),
        processing,
        renamed,
    )


def _int4_in_int8(kernel: str, module: str, group_size: int | None = None) -> Case:
    """Values of 4 bits that the checkpoint has as int8.

    Stock knows the weight by its first name, and on XPU deletes that one. Its kernel
    for ARM has None for the scales, which neither reads.
    """
    strategy = "group" if group_size else "channel"
    return Case(
        lambda: make_linear(
            f"{CT}w4a8_int",
            lambda m: m.CompressedTensorsW4A8Int(strategy, 4, group_size),
            "choose_mp_linear_kernel",
            lambda: mp_kernel(kernel, module),
        ),
        renamed=frozenset({"weight", "weight_packed", "read[1]"}),
    )


def _cutlass_case() -> Case:
    return Case(
        lambda: make_linear(
            f"{CT}w4a8_fp8",
            lambda m: m.CompressedTensorsW4A8Fp8("group", 4, 128),
            "choose_mp_linear_kernel",
            lambda: mp_kernel("CutlassW4A8", "cutlass"),
        ),
        _cutlass_conversions,
    )


def _inc(method: str, packing: str) -> Case:
    def make(module: Any) -> Any:
        parser = import_module(f"{QUANTIZATION}.inc.config_parser")
        config = parser.INCLayerConfig(
            4, GROUP_SIZE, True, f"auto_round:{packing}", "auto", "int", True
        )
        ark = import_module(f"{QUANTIZATION}.inc.schemes.inc_ark_ops")
        state = True, None, None, ArkLinear
        with mock.patch.object(ark, "get_ark_state", lambda: state):
            scheme = getattr(module, method)(config)
        linear = import_module(f"{QUANTIZATION}.inc.inc_linear")
        return linear.INCLinearMethod(scheme)

    module = f"{QUANTIZATION}.inc.schemes.inc_wna16_linear"
    return Case(lambda: make_linear(module, make))


def _fbgemm_method(module: Any) -> Any:
    config = module.FBGEMMFp8Config([], 1200.0)
    config.use_marlin = True
    return module.FBGEMMFp8LinearMethod(config)


def _fp8_channels() -> Any:
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(type="float", strategy="channel")


def _amx(supported: bool) -> Callable[[], Any]:
    return lambda: mock.patch.object(
        torch.cpu, "_is_amx_tile_supported", lambda: supported
    )


def _zentorch(da8w4: bool) -> Callable[[], Any]:
    """As if on a Zen processor, with or without the kernel for int8 activations."""
    module = import_module(f"{_MIXED_PRECISION}.zentorch")
    return lambda: mock.patch.object(module, "has_zentorch_op", lambda names: da8w4)


@contextmanager
def _cutlass_conversions() -> Iterator[None]:
    """Conversions that require a GPU: here with what they compute, but for rounding."""
    module = import_module(f"{_MIXED_PRECISION}.cutlass")

    def to_fp8(quantize: Any, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
        peak = scales.float().amax(dim=-1, keepdim=True)
        return (scales / peak).to(torch.float8_e4m3fn), peak

    def to_signed(packed: torch.Tensor) -> torch.Tensor:
        eights = torch.tensor(0x88888888 - 2**32, dtype=torch.int32)
        return packed.bitwise_xor_(eights)

    with (
        mock.patch.object(module, "convert_bf16_scales_to_fp8", to_fp8),
        mock.patch.object(
            module, "convert_packed_uint4b8_to_signed_int4_inplace", to_signed
        ),
        mock.patch.object(torch.accelerator, "synchronize"),
    ):
        yield
