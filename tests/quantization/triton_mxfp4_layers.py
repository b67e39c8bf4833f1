# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MXFP4 experts for the backends of triton_kernels, whose swizzles run on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.quantization.keep_param_checks import (
    Loaded,
    Outcome,
    Value,
    load_whole,
    loaded_parameters,
    outcome,
    quantization_process,
    value_of,
)
from tests.quantization.keep_param_layers import QUANTIZATION, load_experts

NUM_EXPERTS = 2
HIDDEN_SIZE = 128
INTERMEDIATE_SIZE = 128

LAYOUTS = {
    "strided": ("StridedLayout", {}, "StridedLayout", {}),
    "hopper": (
        "HopperMXValueLayout",
        {"mx_axis": 1},
        "HopperMXScaleLayout",
        {"mx_axis": 1, "num_warps": 8},
    ),
    "blackwell": ("BlackwellMXValueLayout", {}, "BlackwellMXScaleLayout", {}),
}
"""What a device chooses for weights and scales, with the layouts' arguments."""

METHODS = {
    "gpt-oss": ("mxfp4", "GptOssMxfp4MoEMethod", "TRITON"),
    "mxfp4": ("mxfp4", "Mxfp4MoEMethod", "TRITON"),
    "mxfp4-unfused": ("mxfp4", "Mxfp4MoEMethod", "TRITON_UNFUSED"),
    "mxfp4-aiter": ("mxfp4", "Mxfp4MoEMethod", "AITER_TRITON_MXFP4_BF16"),
    "quark": ("quark.quark_moe", "QuarkOCP_MX_MoEMethod", "TRITON"),
    "quark-fp8": ("quark.quark_moe", "QuarkOCP_MX_MoEMethod", "AITER_MXFP4_FP8"),
}
"""Module, class and backend."""

CASES = [(method, layout) for method in METHODS for layout in LAYOUTS]


def moe_config() -> Any:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    return SimpleNamespace(
        in_dtype=torch.bfloat16,
        has_bias=True,
        w13_num_shards=2,
        max_capture_size=0,
        use_mxfp4_w4a4_dsv4=False,
        activation=MoEActivation.SWIGLUOAI,
        disable_inplace=False,
        hidden_dim=HIDDEN_SIZE,
        intermediate_size_per_partition=INTERMEDIATE_SIZE,
        is_act_and_mul=True,
    )


def make_experts(name: str) -> Any:
    """A layer with the parameters of a method's own `create_weights`."""
    path, kind, backend = METHODS[name]
    module = import_module(f"{QUANTIZATION}.{path}")
    layer: Any = torch.nn.Module()
    layer.moe_config = moe_config()
    layer.activation = layer.moe_config.activation
    layer._expert_routing_tables = lambda: None
    layer.quant_method = _make_method(module, kind, backend, layer.moe_config)
    layer.quant_method.create_weights(
        layer,
        NUM_EXPERTS,
        HIDDEN_SIZE,
        INTERMEDIATE_SIZE,
        torch.bfloat16,
        weight_loader=load_experts,
    )
    return layer


def _make_method(module: Any, kind: str, backend: str, moe: Any) -> Any:
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend

    get_current_vllm_config().model_config.hf_config = SimpleNamespace()
    chosen = Mxfp4MoeBackend[backend], object
    choosers = {
        name: lambda *args, **kwargs: chosen
        for name in (
            "select_mxfp4_moe_backend",
            "select_deepseek_v4_mxfp4_moe_backend",
        )
        if hasattr(module, name)
    }
    with mock.patch.multiple(module, **choosers):  # type: ignore[call-overload]
        if kind != "QuarkOCP_MX_MoEMethod":
            return getattr(module, kind)(moe)
        keys = import_module(f"{QUANTIZATION}.utils.quant_utils")
        is_fp8 = backend == "AITER_MXFP4_FP8"
        activation = keys.kFp8StaticTensorSym if is_fp8 else None
        return module.QuarkOCP_MX_MoEMethod(moe, keys.kMxfp4Static, activation)


class Kernel:
    """Stands in for the experts' kernel; running it gives what it was given."""

    is_monolithic = False

    def __init__(self, moe_quant_config: Any, **others: Any) -> None:
        self.config = moe_quant_config
        self.fused_experts = SimpleNamespace(
            keep_constants=lambda layer: None,
            process_weights_after_loading=lambda layer: None,
        )

    def apply(self, **arguments: Any) -> dict[str, Any]:
        return arguments

    apply_monolithic = apply


@contextmanager
def processing(layer: Any, layout: str) -> Iterator[None]:
    """What post-load processing of the experts needs of a GPU."""
    module = import_module(type(layer.quant_method).__module__)
    with (
        mock.patch.object(module, "make_mxfp4_moe_kernel", Kernel),
        mock.patch.object(torch.accelerator, "empty_cache", lambda: None),
        layout_of(layout),
    ):
        yield


def process(layer: Any, layout: str) -> None:
    """Runs post-load processing, as a model loader does."""
    with processing(layer, layout):
        layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def layout_of(name: str) -> Iterator[None]:
    """The choice that a device makes; what it chooses is triton_kernels' own."""
    from triton_kernels.tensor_details import layout

    value, value_options, scale, scale_options = LAYOUTS[name]
    chosen = getattr(layout, value), value_options
    chosen_scale = getattr(layout, scale), scale_options
    with (
        mock.patch.object(
            layout, "make_default_matmul_mxfp4_w_layout", lambda mx_axis: chosen
        ),
        mock.patch.object(
            layout,
            "make_default_matmul_mxfp4_w_scale_layout",
            lambda mx_axis, num_warps: chosen_scale,
        ),
    ):
        yield


def kernel_reads(layer: Any) -> dict[str, Value | None]:
    """What the experts' kernel reads, on stock vLLM as on the series."""
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import (
        weight_mx_scale,
    )

    method, found = layer.quant_method, {}
    for name in ("w13", "w2"):
        weight = getattr(layer, f"{name}_weight_triton", None)
        weight = getattr(layer, f"{name}_weight") if weight is None else weight
        scale = weight_mx_scale(getattr(method, f"{name}_precision_config"))
        found[f"{name}_weight"] = value_of(weight.storage.data)
        found[f"{name}_scale"] = value_of(scale.storage.data)
        found[f"{name}_bias"] = value_of(getattr(layer, f"{name}_bias"))
    return found


def make_processed(method: str, layout: str) -> tuple[Any, dict[str, Loaded]]:
    """A layer that was loaded and processed, and what a loader could write in it."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    layer = make_experts(method)
    loaded = loaded_parameters(layer)
    record_metadata_for_reloading(layer)
    load_whole(layer, loaded)
    process(layer, layout)
    return layer, loaded


def run_all() -> dict[tuple[str, str], tuple[Outcome, dict[str, Value | None]]]:
    """Every case; for a process in which no other test runs."""
    found = {}
    with quantization_process():
        for case in CASES:
            layer, loaded = make_processed(*case)
            found[case] = outcome(layer, loaded), kernel_reads(layer)
    return found
