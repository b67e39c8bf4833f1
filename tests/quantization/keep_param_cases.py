# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers whose post-load processing renames, consumes, ignores or shrinks parameters.

One table, for stock vLLM and for the series. A layer is made by the quantization
method's own `create_weights`. Only the choice of a kernel is made here, since on a CPU
vLLM would choose none of them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

INPUT_SIZE = 256
OUTPUT_SIZES = [128, 128]

_QUANTIZATION = "vllm.model_executor.layers.quantization"
_CT = f"{_QUANTIZATION}.compressed_tensors.schemes.compressed_tensors_"
_QUARK = f"{_QUANTIZATION}.quark.schemes.quark_"
_KERNELS = "vllm.model_executor.kernels.linear"

_FP8_NAMES = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
_INT8_NAMES = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]


@dataclass(frozen=True)
class Case:
    """A quantized layer.

    Attributes:
        build: Makes the layer.
        processing: Context of its post-load processing.
    """

    build: Callable[[], torch.nn.Module]
    processing: Callable[[], AbstractContextManager[Any]] = nullcontext


def _linear(
    module: str,
    make: Callable[[Any], Any],
    chooser: str,
    kernel: Callable[[], Any],
) -> torch.nn.Module:
    """A merged column-parallel layer of two shards, such as gate and up of an MLP.

    Args:
        module: Name of the module of the method or scheme.
        make: Makes the method or scheme, from the module.
        chooser: Name of the function by which the module chooses its kernel.
        kernel: What chooses in its stead.
    """
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    imported = import_module(module)

    def get_quant_method(layer: torch.nn.Module, prefix: str) -> Any:
        made = make(imported)
        if module.startswith(_CT):
            layer.scheme, made = made, _method("compressed_tensors.compressed_tensors")
        elif module.startswith(_QUARK):
            layer.scheme, made = made, _method("quark.quark")
        return made

    def choose(*args: Any, **kwargs: Any) -> Any:
        return kernel()

    with mock.patch.object(imported, chooser, choose):
        return MergedColumnParallelLinear(
            INPUT_SIZE,
            OUTPUT_SIZES,
            bias=False,
            params_dtype=torch.bfloat16,
            quant_config=SimpleNamespace(
                get_quant_method=get_quant_method, online_quantization_config=None
            ),
            prefix="mlp.gate_up_proj",
        )


def _method(module: str) -> Any:
    """The linear method that hands on to the layer's scheme."""
    imported = import_module(f"{_QUANTIZATION}.{module}")
    if module.startswith("quark"):
        return imported.QuarkLinearMethod(None)
    return imported.CompressedTensorsLinearMethod(None)


def _kernel(module: str, name: str, *arguments: Any) -> Any:
    """A kernel, made as if the platform had what it asks for."""
    kind = getattr(import_module(f"{_KERNELS}.{module}"), name)
    yes = True, None
    with (
        mock.patch.object(kind, "is_supported", return_value=yes),
        mock.patch.object(kind, "can_implement", return_value=yes),
    ):
        return kind(*arguments)


def _config(module: str, name: str, **fields: Any) -> Any:
    return getattr(import_module(f"{_KERNELS}.{module}"), name)(**fields)


def _nvfp4_kernel() -> Any:
    config = _config("nvfp4.base", "NvFp4LinearLayerConfig")
    return _kernel("nvfp4.emulation", "EmulationNvFp4LinearKernel", config)


def _mxfp4_kernel() -> Any:
    config = _config("mxfp4.base", "MxFp4LinearLayerConfig")
    return _kernel("mxfp4.emulation", "EmulationMxfp4LinearKernel", config)


def _fp8_kernel(module: str, name: str, weight_key: str) -> Callable[[], Any]:
    def make() -> Any:
        keys = import_module(f"{_QUANTIZATION}.utils.quant_utils")
        config = _config(
            "scaled_mm.ScaledMMLinearKernel",
            "FP8ScaledMMLinearLayerConfig",
            weight_quant_key=getattr(keys, weight_key),
            activation_quant_key=keys.kFp8StaticTensorSym,
            weight_shape=(sum(OUTPUT_SIZES), INPUT_SIZE),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
        return _kernel(f"scaled_mm.{module}", name, config, _FP8_NAMES)

    return make


def _int8_kernel(name: str, static: bool, symmetric: bool) -> Callable[[], Any]:
    def make() -> Any:
        config = _config(
            "scaled_mm.ScaledMMLinearKernel",
            "Int8ScaledMMLinearLayerConfig",
            is_static_input_scheme=static,
            is_channelwise=False,
            input_symmetric=symmetric,
            is_fused_module=True,
        )
        kind = f"{name}Int8ScaledMMLinearKernel"
        return _kernel(f"scaled_mm.{name.lower()}", kind, config, _INT8_NAMES)

    return make


def _compressed(
    module: str, make: Callable[[Any], Any], chooser: str, kernel: Callable[[], Any]
) -> Case:
    return Case(lambda: _linear(_CT + module, make, chooser, kernel))


def _quark(
    module: str, make: Callable[[Any], Any], chooser: str, kernel: Callable[[], Any]
) -> Case:
    return Case(lambda: _linear(_QUARK + module, make, chooser, kernel))


def _compressed_int8(kernel: str, static: bool, symmetric: bool) -> Case:
    return _compressed(
        "w8a8_int8",
        lambda m: m.CompressedTensorsW8A8Int8("tensor", static, symmetric),
        "init_int8_linear_kernel",
        _int8_kernel(kernel, static, symmetric),
    )


def _quark_int8(kernel: str, activation: str) -> Case:
    keys = import_module(f"{_QUANTIZATION}.utils.quant_utils")
    key = getattr(keys, activation)
    return _quark(
        "w8a8_int8",
        lambda m: m.QuarkW8A8Int8(keys.kInt8StaticTensorSym, key),
        "init_int8_linear_kernel",
        _int8_kernel(kernel, key.scale.static, key.symmetric),
    )


def _modelopt(algorithm: str, chooser: str, kernel: Callable[[], Any]) -> Case:
    def make(module: Any) -> Any:
        config = SimpleNamespace(group_size=16)
        return module.ModelOptLinearMethod(
            *module.resolve(algorithm, config, "mlp.gate_up_proj")
        )

    return Case(lambda: _linear(f"{_QUANTIZATION}.modelopt", make, chooser, kernel))


def _gptq(kernel: str) -> Case:
    """GPTQ checkpoints have zero points even where they are symmetric."""

    def make(module: Any) -> Any:
        config = module.AutoGPTQConfig(4, 64, False, True, False, {}, {})
        with mock.patch.object(module, "verify_marlin_supported"):
            return module.AutoGPTQLinearMethod(config)

    return Case(
        lambda: _linear(
            f"{_QUANTIZATION}.auto_gptq",
            make,
            "choose_mp_linear_kernel",
            lambda: _mp_kernel(kernel),
        )
    )


def _mp_kernel(name: str) -> type:
    module = import_module(f"{_KERNELS}.mixed_precision.{name.lower()}")
    return getattr(module, f"{name}LinearKernel")


def _integers(bits: int) -> Case:
    def make(module: Any) -> Any:
        return module.CompressedTensorsWNA8O8Int(
            bits, "channel", None, True, True, quant_format="int-quantized"
        )

    return _compressed(
        "wNa8o8", make, "choose_mp_linear_kernel", lambda: _mp_kernel("Conch")
    )


def _fp8_arguments(strategy: str) -> Any:
    from compressed_tensors.quantization import QuantizationArgs

    block = [128, 128] if strategy == "block" else None
    return QuantizationArgs(type="float", strategy=strategy, block_structure=block)


def _kv_cache(method: str, kv_cache_dtype: str) -> torch.nn.Module:
    """An attention layer, as far as its scales go."""
    attention = import_module("vllm.model_executor.layers.attention.attention")
    module, _, kind = method.rpartition(".")

    class Attention(torch.nn.Module, attention.AttentionLayerBase):
        num_kv_heads = 1
        get_attn_backend = get_kv_cache_spec = None

        def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
            """Nothing but the quantization method's: it has no backend."""

    def get_quant_method(layer: torch.nn.Module, prefix: str) -> Any:
        return getattr(import_module(f"{_QUANTIZATION}.{module}"), kind)(config)

    scheme = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}
    config = SimpleNamespace(
        get_quant_method=get_quant_method,
        online_quantization_config=None,
        kv_cache_scheme=scheme,
    )
    layer = Attention()
    layer.kv_cache_dtype = kv_cache_dtype
    attention._init_kv_cache_quant(layer, config, "attn")
    return layer


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
    return Case(lambda: _kv_cache(method, kv_cache_dtype), processing)


def cases() -> dict[str, Case]:
    """The table, by name."""
    keys = import_module(f"{_QUANTIZATION}.utils.quant_utils")
    nvfp4 = "init_nvfp4_linear_kernel", _nvfp4_kernel
    mxfp4 = "init_mxfp4_linear_kernel", _mxfp4_kernel
    fp8 = (
        "init_fp8_linear_kernel",
        # It takes the parameters as the scheme leaves them.
        _fp8_kernel(
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
            lambda: _linear(
                f"{_QUANTIZATION}.inc.schemes.inc_mxfp4_linear", _inc_method, *mxfp4
            )
        ),
        "ct-w8a16-block": _compressed(
            "w8a16_fp8",
            lambda m: m.CompressedTensorsW8A16Fp8(_fp8_arguments("block"), False),
            "init_wfp8_a16_linear_kernel",
            _fp8_kernel(
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
            lambda: _kv_cache(
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
        "quark-mxfp4-fp8": _quark(
            "w4a8_mxfp4_fp8",
            lambda m: m.QuarkW4A8_MXFP4_FP8(keys.kFp8StaticTensorSym),
            "is_aiter_found_and_supported",
            lambda: False,
        ),
    }


def _inc_method(module: Any) -> Any:
    method = import_module(f"{_QUANTIZATION}.inc.inc_linear").INCLinearMethod
    return method(module.INCMxfp4LinearMethod(SimpleNamespace(group_size=32)))
