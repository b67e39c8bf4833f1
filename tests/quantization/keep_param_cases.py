# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers whose post-load processing renames, consumes, ignores or shrinks parameters.

One table, for stock vLLM and for the series.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.quantization.keep_param_layers import (
    CT,
    QUANTIZATION,
    QUARK,
    Case,
    fp8_kernel,
    int8_kernel,
    make_attention,
    make_linear,
    mp_kernel,
    mxfp4_kernel,
    nvfp4_kernel,
)
from tests.quantization.keep_param_moe_cases import moe_cases
from tests.quantization.keep_param_repack_cases import repack_cases


def _compressed(
    module: str, make: Callable[[Any], Any], chooser: str, kernel: Callable[[], Any]
) -> Case:
    return Case(lambda: make_linear(CT + module, make, chooser, kernel))


def _quark(
    module: str, make: Callable[[Any], Any], chooser: str, kernel: Callable[[], Any]
) -> Case:
    return Case(lambda: make_linear(QUARK + module, make, chooser, kernel))


def _compressed_int8(kernel: str, static: bool, symmetric: bool) -> Case:
    return _compressed(
        "w8a8_int8",
        lambda m: m.CompressedTensorsW8A8Int8("tensor", static, symmetric),
        "init_int8_linear_kernel",
        int8_kernel(kernel, static, symmetric),
    )


def _quark_int8(kernel: str, activation: str) -> Case:
    keys = import_module(f"{QUANTIZATION}.utils.quant_utils")
    key = getattr(keys, activation)
    return _quark(
        "w8a8_int8",
        lambda m: m.QuarkW8A8Int8(keys.kInt8StaticTensorSym, key),
        "init_int8_linear_kernel",
        int8_kernel(kernel, key.scale.static, key.symmetric),
    )


def _modelopt(algorithm: str, chooser: str, kernel: Callable[[], Any]) -> Case:
    def make(module: Any) -> Any:
        config = SimpleNamespace(group_size=16)
        return module.ModelOptLinearMethod(
            *module.resolve(algorithm, config, "mlp.gate_up_proj")
        )

    return Case(lambda: make_linear(f"{QUANTIZATION}.modelopt", make, chooser, kernel))


def _gptq(kernel: str) -> Case:
    """GPTQ checkpoints have zero points even where they are symmetric."""

    def make(module: Any) -> Any:
        config = module.AutoGPTQConfig(4, 64, False, True, False, {}, {})
        with mock.patch.object(module, "verify_marlin_supported"):
            return module.AutoGPTQLinearMethod(config)

    return Case(
        lambda: make_linear(
            f"{QUANTIZATION}.auto_gptq",
            make,
            "choose_mp_linear_kernel",
            lambda: mp_kernel(kernel),
        )
    )


def _integers(bits: int) -> Case:
    def make(module: Any) -> Any:
        return module.CompressedTensorsWNA8O8Int(
            bits, "channel", None, True, True, quant_format="int-quantized"
        )

    return _compressed(
        "wNa8o8", make, "choose_mp_linear_kernel", lambda: mp_kernel("Conch")
    )


def _fp8_arguments(strategy: str) -> Any:
    from compressed_tensors.quantization import QuantizationArgs

    block = [128, 128] if strategy == "block" else None
    return QuantizationArgs(type="float", strategy=strategy, block_structure=block)


def _already_processed() -> AbstractContextManager[Any]:
    from vllm.model_executor.utils import weights_already_processed

    return weights_already_processed()


def _fnuz() -> AbstractContextManager[Any]:
    from vllm.platforms import current_platform

    return mock.patch.object(
        type(current_platform), "is_fp8_fnuz", classmethod(lambda platform: True)
    )


def _base_kv_cache(
    kv_cache_dtype: str,
    processing: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Case:
    method = "kv_cache.BaseKVCacheMethod"
    return Case(lambda: make_attention(method, kv_cache_dtype), processing)


def cases() -> dict[str, Case]:
    """The table, by name."""
    keys = import_module(f"{QUANTIZATION}.utils.quant_utils")
    nvfp4 = "init_nvfp4_linear_kernel", nvfp4_kernel
    mxfp4 = "init_mxfp4_linear_kernel", mxfp4_kernel
    fp8 = (
        "init_fp8_linear_kernel",
        # It takes the parameters as the scheme leaves them.
        fp8_kernel(
            "pytorch", "PerTensorTorchFP8ScaledMMLinearKernel", "kFp8StaticTensorSym"
        ),
    )
    return {
        "ct-nvfp4": _compressed(
            "w4a4_nvfp4", lambda m: m.CompressedTensorsW4A4Fp4(), *nvfp4
        ),
        "ct-nvfp4-a16": _compressed(
            "w4a4_nvfp4", lambda m: m.CompressedTensorsW4A4Fp4(use_a16=True), *nvfp4
        ),
        "ct-mxfp4": _compressed(
            "w4a4_mxfp4", lambda m: m.CompressedTensorsW4A4Mxfp4(), *mxfp4
        ),
        "inc-mxfp4": Case(
            lambda: make_linear(
                f"{QUANTIZATION}.inc.schemes.inc_mxfp4_linear", _inc_method, *mxfp4
            )
        ),
        "ct-w8a16-block": _compressed(
            "w8a16_fp8",
            lambda m: m.CompressedTensorsW8A16Fp8(_fp8_arguments("block"), False),
            "init_wfp8_a16_linear_kernel",
            fp8_kernel(
                "marlin", "MarlinFP8ScaledMMLinearKernel", "kFp8Static128BlockSym"
            ),
        ),
        "modelopt-nvfp4": _modelopt("NVFP4", *nvfp4),
        "modelopt-nvfp4-a16": _modelopt("W4A16_NVFP4", *nvfp4),
        "quark-nvfp4": _quark(
            "nvfp4", lambda m: m.QuarkNVFP4(keys.kNvfp4Dynamic), *nvfp4
        ),
        "gptq-conch": _gptq("Conch"),
        "gptq-marlin": _gptq("Marlin"),
        "ct-int8-cutlass-static": _compressed_int8("Cutlass", True, True),
        "ct-int8-cutlass-asymmetric": _compressed_int8("Cutlass", True, False),
        "ct-int8-triton-static": _compressed_int8("Triton", True, True),
        "ct-int8-triton-asymmetric": _compressed_int8("Triton", True, False),
        "ct-int8-triton-dynamic": _compressed_int8("Triton", False, True),
        "quark-int8-cutlass-static": _quark_int8("Cutlass", "kInt8StaticTensorSym"),
        "quark-int8-triton-static": _quark_int8("Triton", "kInt8StaticTensorSym"),
        "quark-int8-triton-dynamic": _quark_int8("Triton", "kInt8DynamicTokenSym"),
        "quark-int8-cutlass-asymmetric": _quark_int8(
            "Cutlass", "kInt8StaticTensorAsym"
        ),
        "kv-processed": _base_kv_cache("fp8", _already_processed),
        "kv-per-token-head": _base_kv_cache("fp8_per_token_head"),
        "kv-fp8": _base_kv_cache("fp8"),
        "kv-fp8-fnuz": _base_kv_cache("fp8", _fnuz),
        "kv-unquantized": _base_kv_cache("auto"),
        "kv-ct": Case(
            lambda: make_attention(
                "compressed_tensors.compressed_tensors.CompressedTensorsKVCacheMethod",
                "fp8",
            )
        ),
        "wNa8o8-int4": _integers(4),
        "wNa8o8-int8": _integers(8),
        "modelopt-fp8": _modelopt("FP8", *fp8),
        "ct-fp8-tensor": _compressed(
            "w8a8_fp8",
            lambda m: m.CompressedTensorsW8A8Fp8(_fp8_arguments("tensor"), True),
            *fp8,
        ),
        "ct-fp8-channel": _compressed(
            "w8a8_fp8",
            lambda m: m.CompressedTensorsW8A8Fp8(_fp8_arguments("channel"), True),
            *fp8,
        ),
        "quark-fp8": _quark(
            "w8a8_fp8",
            lambda m: m.QuarkW8A8Fp8(
                keys.kFp8StaticTensorSym, keys.kFp8StaticTensorSym
            ),
            *fp8,
        ),
        **repack_cases(),
        "quark-mxfp4-fp8": _quark(
            "w4a8_mxfp4_fp8",
            lambda m: m.QuarkW4A8_MXFP4_FP8(keys.kFp8StaticTensorSym),
            "is_aiter_found_and_supported",
            lambda: False,
        ),
        **moe_cases(),
    }


def _inc_method(module: Any) -> Any:
    method = import_module(f"{QUANTIZATION}.inc.inc_linear").INCLinearMethod
    return method(module.INCMxfp4LinearMethod(SimpleNamespace(group_size=32)))
