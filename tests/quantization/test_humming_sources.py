# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What Humming's NVFP4 kernel converts: what it converts on stock, and nothing else.

Humming itself is not installed; a stand-in for its schemas returns what it is given.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    Value,
    load,
    loaded_parameters,
    quantization_process,
    value_of,
)
from tests.quantization.keep_param_layers import make_kernel
from tests.stock_vllm import run_on_stock

NAMES = ["ct-nvfp4", "ct-nvfp4-a16", "modelopt-nvfp4", "modelopt-nvfp4-a16"]
NAMES += ["quark-nvfp4"]


class _Schema:
    """Stands in for a weight schema and an input schema of Humming."""

    has_zero_point = False
    static_tensor_scale_name = "input_scale_2"
    sources: dict[str, Value | None]

    def convert_humming(
        self, tensors: dict[str, torch.Tensor], **sizes: Any
    ) -> tuple["_Schema", dict[str, torch.Tensor]]:
        self.sources = {name: value_of(tensor) for name, tensor in tensors.items()}
        return self, {"weight": tensors["weight_packed"].data.clone()}


def convert(name: str) -> dict[str, Value | None]:
    """What the kernel converts of a layer."""
    from vllm.model_executor.kernels.linear.nvfp4 import base, humming
    from vllm.model_executor.layers.quantization.utils.humming import linear
    from vllm.utils import humming as package

    layer = cases()[name].build()
    load(layer, loaded_parameters(layer))
    layer.has_bias = False
    layer.params_dtype = torch.bfloat16
    config = base.NvFp4LinearLayerConfig()
    kernel = make_kernel("nvfp4.humming", "HummingNvFp4LinearKernel", config)
    getattr(layer, "scheme", layer.quant_method).kernel = kernel
    schema = _Schema()
    fakes: dict[str, Any] = {
        "BaseInputSchema": None,
        "BaseWeightSchema": SimpleNamespace(from_config=lambda config: schema),
        "HummingInputSchema": None,
        "prepare_and_transform_humming_tensors": lambda tensors, **kwargs: (
            None,
            tensors,
        ),
    }
    with (
        mock.patch.multiple(package, create=True, **fakes),
        mock.patch.object(humming, "quant_key_to_input_schema", lambda key: schema),
        mock.patch.object(humming, "create_humming_locks"),
        mock.patch.object(
            linear, "check_and_fallback_input_schema", lambda **kwargs: schema
        ),
    ):
        layer.quant_method.process_weights_after_loading(layer)
    return schema.sources


def convert_all() -> dict[str, dict[str, Value | None]]:
    """`convert` for every layer."""
    with quantization_process():
        return {name: convert(name) for name in NAMES}


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[str, dict[str, Value | None]]:
    """What the kernel of upstream's release converts."""
    return run_on_stock(stock_tree, convert_all)


@pytest.fixture(scope="module")
def series() -> dict[str, dict[str, Value | None]]:
    return convert_all()


@pytest.mark.parametrize("name", NAMES)
def test_humming_converts_what_it_converts_on_stock(name: str, series, stock):
    assert series[name] == stock[name]
