# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Routed experts whose post-load processing renames, drops or shrinks parameters."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.quantization.keep_param_layers import QUANTIZATION, Case
from tests.quantization.keep_param_moe_layers import (
    W4A8_CPU,
    W4A8_CUTLASS,
    Backend,
    fp8,
    int8,
    make_experts,
    mxfp4,
    nvfp4,
    wna16,
)

_MOE = "compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_"
_CT = f"{QUANTIZATION}.{_MOE}"
_QUARK = f"{QUANTIZATION}.quark.quark_moe"
_MODELOPT = f"{QUANTIZATION}.modelopt"
_MUSE_SPARK = "vllm.models.muse_spark.nvidia.muse_moe_runner"


def _experts(
    module: str, make: Callable[[Any, Any], Any], backend: Backend, **rest: Any
) -> Case:
    return Case(lambda: make_experts(module, make, backend, **rest))


def _arguments(**fields: Any) -> Any:
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(**fields)


def _keys() -> Any:
    from vllm.model_executor.layers.quantization.utils import quant_utils

    return quant_utils


def _renamed() -> dict[str, Case]:
    def marlin_mxfp4(module: Any, layer: Any) -> Any:
        """Without a GPU there is none that CUTLASS would run on."""
        return module.CompressedTensorsW4A4Mxfp4MoEMethod(layer.moe_config)

    def ct_nvfp4(module: Any, layer: Any) -> Any:
        return module.CompressedTensorsW4A4Nvfp4MoEMethod(layer.moe_config)

    def ct_w4a8(module: Any, layer: Any) -> Any:
        weight = _arguments(num_bits=4, strategy="group", group_size=128)
        return module.CompressedTensorsW4A8Fp8MoEMethod(
            weight, _arguments(type="float"), layer.moe_config
        )

    return {
        "moe-ct-mxfp4": _experts(f"{_CT}w4a4_mxfp4", marlin_mxfp4, mxfp4("MARLIN")),
        "moe-ct-nvfp4": _experts(f"{_CT}w4a4_nvfp4", ct_nvfp4, nvfp4("EMULATION")),
        "moe-ct-nvfp4-marlin": _experts(f"{_CT}w4a4_nvfp4", ct_nvfp4, nvfp4("MARLIN")),
        "moe-ct-w4a8-fp8": _experts(f"{_CT}w4a8_fp8", ct_w4a8, W4A8_CUTLASS),
        "moe-ct-w4a8-mxfp4": _experts(
            f"{_CT}w4a8_mxfp4",
            lambda m, layer: m.CompressedTensorsW4A8Mxfp4MoEMethod(layer.moe_config),
            mxfp4("MARLIN", "select_deepseek_v4_mxfp4_moe_backend"),
            choosing_module=f"{QUANTIZATION}.mxfp4",
        ),
        "moe-inc-mxfp4": _experts(
            f"{QUANTIZATION}.inc.schemes.inc_mxfp4_moe",
            lambda m, layer: m.INCMxfp4MoEMethod(layer.moe_config),
            mxfp4("MARLIN"),
        ),
    }


def _aliased() -> dict[str, Case]:
    def awq(module: Any, layer: Any) -> Any:
        config = module.AutoAWQConfig(4, 64, True, False)
        return module.AutoAWQMoEMethod(config, layer.moe_config)

    def gptq(module: Any, layer: Any) -> Any:
        config = module.AutoGPTQConfig(4, 64, False, True, False, {}, {})
        return module.AutoGPTQMoEMethod(config, layer.moe_config)

    def moe_wna16(module: Any, layer: Any) -> Any:
        config = module.MoeWNA16Config("gptq", 4, 64, False, False, None, {})
        return module.MoeWNA16Method(config, layer.moe_config)

    def ct_wna16(module: Any, layer: Any) -> Any:
        weight = _arguments(num_bits=4, strategy="group", group_size=64)
        return module.CompressedTensorsWNA16MoEMethod(weight, None, layer.moe_config)

    made = {
        "moe-awq": (f"{QUANTIZATION}.auto_awq", awq),
        "moe-gptq": (f"{QUANTIZATION}.auto_gptq", gptq),
        "moe-ct-wna16": (f"{_CT}wna16", ct_wna16),
    }

    def ark(module: Any, layer: Any) -> Any:
        package = f"{QUANTIZATION}.moe_wna16"
        config = import_module(package).MoeWNA16Config(
            "gptq", 4, 64, False, False, None, {}
        )
        with mock.patch(f"{QUANTIZATION}.inc.schemes.inc_ark_ops.get_ark_state", _ark):
            return module.INCARKWNA16MoEMethod(config, layer.moe_config)

    triton = wna16("TRITON")
    return {
        "moe-wna16": _experts(f"{QUANTIZATION}.moe_wna16", moe_wna16, triton),
        "moe-inc-ark": Case(
            lambda: make_experts(
                f"{QUANTIZATION}.inc.schemes.inc_wna16_moe",
                ark,
                triton,
                choosing_module=f"{QUANTIZATION}.moe_wna16",
            ),
            _ark_operators,
        ),
    } | {
        f"{name}-{backend.lower()}": _experts(module, make, wna16(backend))
        for name, (module, make) in made.items()
        for backend in ("EMULATION", "MARLIN")
    }


def _ark() -> tuple[bool, None, Any, None]:
    """Stands in for the library of Intel's kernels: it prepares nothing."""
    gemm = SimpleNamespace(prepare=lambda weight, scales, **rest: None)
    library = SimpleNamespace(xpu_lib=object(), MoeSymmetricGemm=gemm)
    return True, None, library, None


def _ark_operators() -> AbstractContextManager[Any]:
    operators = SimpleNamespace(remap_hidden_states=None, moe_gather=None)
    return mock.patch.object(torch.ops, "_moe_C", operators)


def _nvfp4_scales() -> dict[str, Case]:
    config: Any = SimpleNamespace(
        group_size=16,
        quant_method="NVFP4",
        get_name=lambda: "modelopt_fp4",
        is_checkpoint_nvfp4_serialized=True,
        moe_activation_override=None,
    )

    def modelopt(module: Any, layer: Any) -> Any:
        return module.ModelOptNvFp4FusedMoE(config, layer.moe_config)

    def muse_spark(module: Any, layer: Any) -> Any:
        """On Hopper, where it runs Marlin, with a hook that the runner gives it."""
        hopper = classmethod(lambda platform, capability: True)
        platform = type(module.current_platform)
        with mock.patch.object(platform, "is_device_capability_family", hopper):
            method = module.MuseSparkModelOptNvFp4FusedMoE(config, layer.moe_config)
        method.muse_post_expert_finalize = None
        return method

    def quark(module: Any, layer: Any) -> Any:
        return module.QuarkNvfp4MoEMethod(layer.moe_config, None, _keys().kNvfp4Dynamic)

    marlin = nvfp4("MARLIN")
    muse = _experts(_MUSE_SPARK, muse_spark, marlin, choosing_module=_MODELOPT)
    made = {"modelopt": (_MODELOPT, modelopt), "quark": (_QUARK, quark)}
    return (
        {"moe-muse-spark-marlin": muse}
        | {
            f"moe-{name}-nvfp4{suffix}": _experts(module, make, nvfp4(backend))
            for name, (module, make) in made.items()
            for suffix, backend in (("", "EMULATION"), ("-marlin", "MARLIN"))
        }
        | {
            f"moe-{name}-nvfp4-cutlass": Case(
                partial(make_experts, module, make, nvfp4("VLLM_CUTLASS")), _on_the_host
            )
            for name, (module, make) in made.items()
        }
    )


def _on_the_host() -> AbstractContextManager[Any]:
    """Stands in for the copy to the device of scales that are swizzled."""
    return mock.patch.object(torch.Tensor, "cuda", lambda tensor: tensor)


def _int8() -> dict[str, Case]:
    def quark(weight: str, activation: str) -> Callable[[Any, Any], Any]:
        def make(module: Any, layer: Any) -> Any:
            return module.QuarkW8A8Int8MoEMethod(
                layer.moe_config,
                getattr(_keys(), weight),
                getattr(_keys(), activation),
            )

        return make

    def ct_int4(module: Any, layer: Any) -> Any:
        weight = _arguments(num_bits=4, strategy="group", group_size=64)
        return module.CompressedTensorsW4A8Int8MoEMethod(
            weight, _arguments(), layer.moe_config
        )

    int4 = f"{_CT}w4a8_int8", ct_int4, W4A8_CPU
    triton = int8("TRITON")
    return {
        "moe-quark-int8-channel": _experts(
            _QUARK, quark("kInt8StaticChannelSym", "kInt8DynamicTokenSym"), triton
        ),
        "moe-quark-int8-tensor": _experts(
            _QUARK, quark("kInt8StaticTensorSym", "kInt8StaticTensorSym"), triton
        ),
        "moe-ct-w4a8-int8": _experts(*int4),
        "moe-ct-w4a8-int8-bias": _experts(*int4, has_bias=True),
    }


def _fp8_scales() -> dict[str, Case]:
    def modelopt(module: Any, layer: Any) -> Any:
        config: Any = SimpleNamespace(is_checkpoint_fp8_serialized=True)
        return module.ModelOptFp8MoEMethod(config, layer.moe_config)

    def plain(module: Any, layer: Any) -> Any:
        config = module.Fp8Config(
            is_checkpoint_fp8_serialized=True, activation_scheme="static"
        )
        return module.Fp8MoEMethod(config, layer)

    def compressed(module: Any, layer: Any) -> Any:
        return module.CompressedTensorsW8A8Fp8MoEMethod(
            _arguments(type="float", strategy="tensor"),
            _arguments(type="float", strategy="tensor"),
            layer.moe_config,
        )

    def quark(module: Any, layer: Any) -> Any:
        key = _keys().kFp8StaticTensorSym
        return module.QuarkW8A8Fp8MoEMethod(layer.moe_config, key, key)

    def quark_mxfp4(module: Any, layer: Any) -> Any:
        return module.QuarkOCP_MX_MoEMethod(
            layer.moe_config, _keys().kMxfp4Static, _keys().kFp8StaticTensorSym
        )

    def quark_int4(module: Any, layer: Any) -> Any:
        with mock.patch.object(
            module.rocm_aiter_ops, "is_fused_moe_enabled", lambda: True
        ):
            return module.QuarkW4A8Fp8MoEMethod(
                layer.moe_config, _keys().kFp8StaticTensorSym
            )

    triton = fp8("TRITON")
    return {
        "moe-quark-int4-fp8": Case(
            lambda: make_experts(_QUARK, quark_int4, triton), _aiter_shuffle
        ),
        "moe-modelopt-fp8": _experts(_MODELOPT, modelopt, triton),
        "moe-fp8": _experts(f"{QUANTIZATION}.fp8", plain, triton),
        "moe-fp8-cutlass": _experts(f"{QUANTIZATION}.fp8", plain, fp8("VLLM_CUTLASS")),
        "moe-ct-fp8": _experts(f"{_CT}w8a8_fp8", compressed, triton),
        "moe-quark-fp8": _experts(_QUARK, quark, triton),
        "moe-quark-mxfp4-fp8": _experts(_QUARK, quark_mxfp4, mxfp4("EMULATION")),
    }


def _aiter_shuffle() -> AbstractContextManager[Any]:
    """Stands in for the ROCm operator: as many bytes, in another order."""
    module = import_module("vllm._aiter_ops")
    return mock.patch.object(
        module.rocm_aiter_ops,
        "shuffle_weights",
        lambda *tensors: tuple(tensor.roll(1, 0) for tensor in tensors),
    )


def moe_cases() -> dict[str, Case]:
    """The table of experts, by name."""
    return _renamed() | _aliased() | _nvfp4_scales() | _int8() | _fp8_scales()
