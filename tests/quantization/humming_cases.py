# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that Humming's methods and kernels convert; for stock and for the series."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.quantization.humming_on_cpu import humming_on_cpu
from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_layers import (
    INPUT_SIZE,
    OUTPUT_SIZES,
    QUANTIZATION,
    Case,
    fp8_kernel,
    load_experts,
    make_config,
    make_kernel,
    make_linear,
    mp_kernel,
)

NUM_EXPERTS = 2
HIDDEN_SIZE = 256
INTERMEDIATE_SIZE = 128

_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
_FP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_STATIC = {**_FP4, "dynamic": "local", "symmetric": True}


def _compressed(format: str, weights: Any, activations: Any = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    group["input_activations"] = activations
    groups = {"group_0": group}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": groups,
    }


CHECKPOINTS = {
    "ct-int4": _compressed("pack-quantized", {**_INT4, "symmetric": True}),
    "ct-int4-zero-point": _compressed("pack-quantized", {**_INT4, "symmetric": False}),
    "ct-nvfp4": _compressed("nvfp4-pack-quantized", _FP4),
    "ct-nvfp4-static": _compressed("nvfp4-pack-quantized", _FP4, _STATIC),
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
    "fp8-block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "humming": {"quant_method": "humming", "dtype": "uint4", "group_size": 64},
}
"""Quantization configs of checkpoints that Humming's own methods load."""

_STATIC_ACTIVATIONS = ("ct-nvfp4-static", "fp8-tensor")
"""Those with loaded scales of activations, which the experts' method does not load."""


def humming_config(name: str) -> Any:
    """The config, of which only the choice of the layer's method is used."""
    module = import_module(f"{QUANTIZATION}.humming")
    return module.HummingConfig(CHECKPOINTS[name])


def _method(name: str, forced: bool = False) -> Case:
    """A linear layer of `HummingLinearMethod`."""

    def build() -> torch.nn.Module:
        from vllm import envs

        requantize = {"force_requant": True, "dtype": "uint8"} if forced else {}
        with mock.patch.object(
            envs, "VLLM_HUMMING_ONLINE_QUANT_CONFIG", requantize, create=True
        ):
            return _linear(humming_config(name), bias=forced)

    return Case(build, humming_on_cpu)


def _linear(config: Any, bias: bool = False) -> torch.nn.Module:
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    return MergedColumnParallelLinear(
        INPUT_SIZE,
        OUTPUT_SIZES,
        bias=bias,
        params_dtype=torch.bfloat16,
        quant_config=config,
        prefix="mlp.gate_up_proj",
    )


def _kernel(name: str, kernel: Callable[[], Any]) -> Case:
    """The layer of another test, with one of Humming's kernels."""

    def build() -> torch.nn.Module:
        layer: Any = cases()[name].build()
        holder = getattr(layer, "scheme", layer.quant_method)
        (slot,) = (
            one
            for one in ("kernel", "fp8_linear", "linear_kernel")
            if one in vars(holder)
        )
        setattr(holder, slot, kernel())
        return layer

    return Case(build, humming_on_cpu)


def _nvfp4() -> Any:
    config = make_config("nvfp4.base", "NvFp4LinearLayerConfig")
    return make_kernel("nvfp4.humming", "HummingNvFp4LinearKernel", config)


def _mxfp4() -> Any:
    config = make_config("mxfp4.base", "MxFp4LinearLayerConfig")
    return make_kernel("mxfp4.humming", "HummingMxFp4LinearKernel", config)


def _gptq() -> Case:
    def make(module: Any) -> Any:
        config = module.AutoGPTQConfig(4, 64, False, True, False, {}, {})
        with mock.patch.object(module, "verify_marlin_supported"):
            return module.AutoGPTQLinearMethod(config)

    return Case(
        lambda: make_linear(
            f"{QUANTIZATION}.auto_gptq",
            make,
            "choose_mp_linear_kernel",
            lambda: mp_kernel("Humming"),
        ),
        humming_on_cpu,
    )


def linear_cases() -> dict[str, Case]:
    """The linear layers, by name."""
    fp8 = fp8_kernel(
        "humming", "HummingFP8ScaledMMLinearKernel", "kFp8Static128BlockSym"
    )
    methods = {f"method-{name}": _method(name) for name in CHECKPOINTS}
    return methods | {
        "method-requantized": _method("ct-int4", forced=True),
        "kernel-gptq": _gptq(),
        "kernel-ct-mxfp4": _kernel("ct-mxfp4", _mxfp4),
        "kernel-ct-w8a16-block": _kernel("ct-w8a16-block", fp8),
        **{
            f"kernel-{name}": _kernel(name, _nvfp4)
            for name in cases()
            if "nvfp4" in name and not name.startswith("moe-")
        },
    }


def make_experts(name: str) -> torch.nn.Module:
    """Routed experts of `HummingMoEMethod`: as much of the layer as it asks for."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    module = import_module(f"{QUANTIZATION}.humming")
    moe = SimpleNamespace(
        in_dtype=torch.bfloat16,
        has_bias=False,
        w13_num_shards=2,
        num_local_experts=NUM_EXPERTS,
        activation=MoEActivation.SILU,
        disable_inplace=False,
    )
    config = humming_config(name).get_quant_config_for_layer("mlp.experts", "moe")
    layer: Any = torch.nn.Module()
    layer.moe_config = moe
    layer.params_dtype = torch.bfloat16
    layer.layer_name = "mlp.experts"
    layer._expert_routing_tables = lambda: None
    select = "select_humming_moe_experts"
    with humming_on_cpu(), mock.patch.object(module, select):
        layer.quant_method = module.HummingMoEMethod(config, moe)
    layer.quant_method.create_weights(
        layer,
        NUM_EXPERTS,
        HIDDEN_SIZE,
        INTERMEDIATE_SIZE,
        torch.bfloat16,
        weight_loader=load_experts,
    )
    return layer


@contextmanager
def _moe_processing() -> Iterator[None]:
    """A kernel that holds its configuration, and runs nothing."""
    module = import_module(f"{QUANTIZATION}.humming")
    make = "make_humming_moe_kernel"
    with humming_on_cpu(), mock.patch.object(module, make, _hold):
        yield


def _hold(config: Any, *others: Any, **more: Any) -> Any:
    experts = SimpleNamespace(keep_constants=lambda layer: None)
    return SimpleNamespace(config=config, fused_experts=experts)


def moe_cases() -> dict[str, Case]:
    """The routed experts, by name."""
    return {
        name: Case(partial(make_experts, name), _moe_processing)
        for name in CHECKPOINTS
        if name not in _STATIC_ACTIVATIONS
    }
