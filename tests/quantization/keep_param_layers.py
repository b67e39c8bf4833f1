# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quantized layers, made by the quantization methods' own `create_weights`.

Only the choice of a kernel is made here: on a CPU vLLM would choose none of them.
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

QUANTIZATION = "vllm.model_executor.layers.quantization"
CT = f"{QUANTIZATION}.compressed_tensors.schemes.compressed_tensors_"
QUARK = f"{QUANTIZATION}.quark.schemes.quark_"
_KERNELS = "vllm.model_executor.kernels.linear"

_FP8_NAMES = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
_INT8_NAMES = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]


@dataclass(frozen=True)
class Case:
    """A quantized layer.

    Attributes:
        build: Makes the layer.
        processing: Context of its post-load processing.
        renamed: Names under which a kernel of stock finds nothing, or something that
            it made itself, because what was loaded is elsewhere or gone. They are left
            out of the comparison with stock.
    """

    build: Callable[[], torch.nn.Module]
    processing: Callable[[], AbstractContextManager[Any]] = nullcontext
    renamed: frozenset[str] = frozenset()


def make_linear(
    module: str,
    make: Callable[[Any], Any],
    chooser: str = "",
    kernel: Callable[[], Any] = object,
) -> torch.nn.Module:
    """A merged column-parallel layer of two shards, such as gate and up of an MLP.

    Args:
        module: Name of the module of the method or scheme.
        make: Makes the method or scheme, from the module.
        chooser: Name of the function by which the module chooses its kernel, if any.
        kernel: What chooses in its stead.
    """
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    imported = import_module(module)

    def get_quant_method(layer: Any, prefix: str) -> Any:
        made = make(imported)
        if module.startswith(CT):
            layer.scheme, made = made, _method("compressed_tensors.compressed_tensors")
        elif module.startswith(QUARK):
            layer.scheme, made = made, _method("quark.quark")
        return made

    def choose(*args: Any, **kwargs: Any) -> Any:
        return kernel()

    config: Any = SimpleNamespace(
        get_quant_method=get_quant_method, online_quantization_config=None
    )
    chosen = mock.patch.object(imported, chooser, choose) if chooser else nullcontext()
    with chosen:
        return MergedColumnParallelLinear(
            INPUT_SIZE,
            OUTPUT_SIZES,
            bias=False,
            params_dtype=torch.bfloat16,
            quant_config=config,
            prefix="mlp.gate_up_proj",
        )


def _method(module: str) -> Any:
    """The linear method that hands on to the layer's scheme."""
    imported = import_module(f"{QUANTIZATION}.{module}")
    if module.startswith("quark"):
        return imported.QuarkLinearMethod(None)
    return imported.CompressedTensorsLinearMethod(None)


def make_kernel(module: str, name: str, *arguments: Any) -> Any:
    """A kernel, made as if the platform had what it asks for."""
    kind = getattr(import_module(f"{_KERNELS}.{module}"), name)
    yes = True, None
    with (
        mock.patch.object(kind, "is_supported", return_value=yes),
        mock.patch.object(kind, "can_implement", return_value=yes),
    ):
        return kind(*arguments)


def make_config(module: str, name: str, **fields: Any) -> Any:
    return getattr(import_module(f"{_KERNELS}.{module}"), name)(**fields)


def nvfp4_kernel() -> Any:
    config = make_config("nvfp4.base", "NvFp4LinearLayerConfig")
    return make_kernel("nvfp4.emulation", "EmulationNvFp4LinearKernel", config)


def mxfp4_kernel() -> Any:
    config = make_config("mxfp4.base", "MxFp4LinearLayerConfig")
    return make_kernel("mxfp4.emulation", "EmulationMxfp4LinearKernel", config)


def fp8_kernel(module: str, name: str, weight_key: str) -> Callable[[], Any]:
    def make() -> Any:
        keys = import_module(f"{QUANTIZATION}.utils.quant_utils")
        config = make_config(
            "scaled_mm.ScaledMMLinearKernel",
            "FP8ScaledMMLinearLayerConfig",
            weight_quant_key=getattr(keys, weight_key),
            activation_quant_key=keys.kFp8StaticTensorSym,
            weight_shape=(sum(OUTPUT_SIZES), INPUT_SIZE),
            input_dtype=torch.bfloat16,
            out_dtype=torch.bfloat16,
        )
        return make_kernel(f"scaled_mm.{module}", name, config, _FP8_NAMES)

    return make


def int8_kernel(
    name: str, static: bool, symmetric: bool, channelwise: bool = False
) -> Callable[[], Any]:
    def make() -> Any:
        config = make_config(
            "scaled_mm.ScaledMMLinearKernel",
            "Int8ScaledMMLinearLayerConfig",
            is_static_input_scheme=static,
            is_channelwise=channelwise,
            input_symmetric=symmetric,
            is_fused_module=True,
        )
        kind = f"{name}Int8ScaledMMLinearKernel"
        return make_kernel(f"scaled_mm.{name.lower()}", kind, config, _INT8_NAMES)

    return make


def mp_kernel(name: str, module_name: str | None = None) -> type:
    """A kernel for weights of mixed precision; ``module_name`` if it is not `name`."""
    module = import_module(f"{_KERNELS}.mixed_precision.{module_name or name.lower()}")
    return getattr(module, f"{name}LinearKernel")


def make_attention(method: str, kv_cache_dtype: str) -> torch.nn.Module:
    """An attention layer, as far as its scales go."""
    from vllm.model_executor.layers.attention import attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    module, _, kind = method.rpartition(".")

    class Attention(torch.nn.Module, AttentionLayerBase):
        num_kv_heads = 1
        get_attn_backend: Any = None
        get_kv_cache_spec: Any = None

        def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
            """Nothing but the quantization method's: it has no backend."""

    def get_quant_method(layer: torch.nn.Module, prefix: str) -> Any:
        return getattr(import_module(f"{QUANTIZATION}.{module}"), kind)(config)

    scheme = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}
    config: Any = SimpleNamespace(
        get_quant_method=get_quant_method,
        online_quantization_config=None,
        kv_cache_scheme=scheme,
    )
    layer: Any = Attention()
    layer.kv_cache_dtype = kv_cache_dtype
    attention._init_kv_cache_quant(layer, config, "attn")
    return layer


def load_experts(
    param: torch.nn.Parameter,
    loaded_weight: torch.Tensor,
    weight_name: str,
    shard_id: str,
    expert_id: int | None = None,
    return_success: bool = False,
) -> None:
    """A weight loader of routed experts that loads all of them at once."""
    param.data.copy_(loaded_weight)
