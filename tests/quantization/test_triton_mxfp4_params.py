# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MXFP4 experts in Triton's layouts stay registered, and reload into place."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.quantization.keep_param_checks import (
    load_whole,
    outcome,
    quantization_process,
    restore_model_format,
)
from tests.quantization.triton_mxfp4_layers import (
    CASES,
    METHODS,
    Kernel,
    kernel_reads,
    make_experts,
    make_processed,
    process,
    processing,
    run_all,
)
from tests.stock_vllm import run_on_stock
from vllm.model_executor.layers.fused_moe.fused_moe_modular_method import (
    FusedMoEModularMethod,
)
from vllm.model_executor.layers.quantization.utils.mxfp4_utils import (
    keep_triton_tensor,
    triton_weight,
    weight_mx_scale,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

experts = pytest.mark.parametrize(("method", "layout"), CASES)


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[tuple[str, str], Any]:
    """What upstream's release makes of the same layers."""
    return run_on_stock(stock_tree, run_all)


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def _tensors(layer: Any) -> list[torch.Tensor]:
    """What the kernel reads, in the places where it looks."""
    method = layer.quant_method
    scales = method.w13_precision_config, method.w2_precision_config
    return [
        triton_weight(layer, "w13_weight").storage.data,
        triton_weight(layer, "w2_weight").storage.data,
        *(weight_mx_scale(scale).storage.data for scale in scales),
    ]


@experts
def test_loaded_parameters_survive(method: str, layout: str):
    layer, loaded = make_processed(method, layout)

    assert outcome(layer, loaded).losses == []


@experts
def test_the_kernel_reads_what_it_reads_on_stock(method: str, layout: str, stock):
    layer, _ = make_processed(method, layout)

    assert kernel_reads(layer) == stock[method, layout][1]


def test_stock_loses_the_weights(stock):
    for lost, _ in stock.values():
        assert "w13_weight is no longer registered" in lost.losses


@experts
def test_the_kernel_reads_the_storage_of_the_parameters(method: str, layout: str):
    layer, _ = make_processed(method, layout)

    names = ["w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale"]
    for name, tensor in zip(names, _tensors(layer), strict=True):
        param = layer.get_parameter(name)
        assert tensor.data_ptr() == param.data_ptr()
        assert (tensor.shape, tensor.stride()) == (param.shape, param.stride())


def test_no_second_copy_is_kept():
    layer, loaded = make_processed("mxfp4", "strided")

    assert outcome(layer, loaded).nbytes == sum(
        entry.nbytes * (2 if "w13_bias" in name or "w2_bias" in name else 1)
        for name, entry in loaded.items()
    ), "biases become float32; nothing else grows"


@experts
def test_checkpoint_bytes_in_the_same_objects_go_into_the_same_tensors(
    method: str, layout: str
):
    layer, loaded = make_processed(method, layout)
    first, places = kernel_reads(layer), [t.data_ptr() for t in _tensors(layer)]

    restore_model_format(loaded)
    load_whole(layer, loaded)
    process(layer, layout)

    assert kernel_reads(layer) == first
    assert [tensor.data_ptr() for tensor in _tensors(layer)] == places
    assert outcome(layer, loaded).losses == []


@experts
def test_two_layerwise_reloads_go_into_the_same_tensors(method: str, layout: str):
    layer, loaded = make_processed(method, layout)
    first, places = kernel_reads(layer), [t.data_ptr() for t in _tensors(layer)]

    for _ in range(2):
        for tensor in _tensors(layer):
            tensor.zero_()
        with processing(layer, layout):
            initialize_layerwise_reload(layer)
            load_whole(layer, loaded)
            finalize_layerwise_reload(layer, SimpleNamespace(dtype=torch.bfloat16))

        assert kernel_reads(layer) == first
        assert [tensor.data_ptr() for tensor in _tensors(layer)] == places
        assert outcome(layer, loaded).losses == []


def _call(method: Any, layer: Any) -> dict[str, Any]:
    for name in ("global_num_experts", "expert_map"):
        setattr(layer, name, None)
    layer.apply_router_weight_on_input = False
    return method.apply(layer, None, None, None, None, None)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_hands_the_tensors_to_its_kernel(name: str):
    layer, _ = make_processed(name, "strided")

    given = _call(layer.quant_method, layer)

    assert given["w1"] is layer.w13_weight_triton
    assert given["w2"] is layer.w2_weight_triton


def test_the_modular_method_hands_the_tensors_to_its_kernel():
    layer, _ = make_processed("gpt-oss", "strided")
    kernel: Any = Kernel(None)
    kernel.prepare_finalize = kernel.fused_experts
    method = object.__new__(FusedMoEModularMethod)
    torch.nn.Module.__init__(method) if isinstance(method, torch.nn.Module) else None
    method.moe_kernel = kernel

    given = _call(method, layer)

    assert given["w1"] is layer.w13_weight_triton


def test_a_parameter_in_no_layout_of_triton_is_read_itself():
    layer = make_experts("gpt-oss")

    assert triton_weight(layer, "w13_weight") is layer.w13_weight


def test_a_tensor_follows_a_parameter_that_is_rebound():
    layer, _ = make_processed("gpt-oss", "strided")
    held = layer.w13_weight_triton
    moved = layer.w13_weight.data.clone(memory_format=torch.preserve_format)
    layer.w13_weight.data = moved
    again = SimpleNamespace(storage=SimpleNamespace(data=moved))

    assert keep_triton_tensor(layer, "w13_weight", again) is held
    assert held.storage.data.data_ptr() == moved.data_ptr()
