# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A layer gets the method for what its checkpoint declares it to be."""

from typing import Any

import pytest

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.checkpoint_dequant import (
    CheckpointDequantConfig,
    dequant_config,
)
from vllm.model_executor.layers.quantization.fp8_dequant import Fp8DequantLinearMethod
from vllm.model_executor.layers.quantization.nvfp4_dequant import (
    Nvfp4DequantLinearMethod,
)

SHARDS = {"fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa")}
FUSED = "model.layers.3.self_attn.fused_qkv_a_proj"
O_PROJ = "model.layers.3.self_attn.o_proj"
EXPERTS = "model.layers.3.mlp.experts"

FP8_WEIGHT = {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [64, 64]}
FP4_WEIGHT = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}


def _linear() -> LinearBase:
    return LinearBase.__new__(LinearBase)


def _method(method: str, declared: dict[str, Any], prefix: str) -> Any:
    config = get_quantization_config(method).from_config(declared)
    chosen = CheckpointDequantConfig(config, SHARDS)
    return chosen.get_quant_method(_linear(), prefix)


def _quark(weight: dict, **further: Any) -> dict[str, Any]:
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": weight, "input_tensors": None},
        "export": {"kv_cache_group": [], "pack_method": "reorder"},
        "exclude": [],
        **further,
    }


def _compressed_tensors(target: str) -> dict[str, Any]:
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
        "symmetric": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": [target], "weights": weights}},
        "ignore": [],
    }


def test_fp8_keeps_the_block_size_of_its_checkpoint():
    declared = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [64, 32],
    }
    method = _method("fp8", declared, FUSED)

    assert isinstance(method, Fp8DequantLinearMethod)
    assert method.config.weight_block_size == (64, 32)


@pytest.mark.parametrize("algorithm", ["NVFP4", "W4A16_NVFP4"])
def test_modelopt_nvfp4_is_four_bit_where_it_is_not_ignored(algorithm: str):
    declared = {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "group_size": 16,
        "ignore": [O_PROJ],
    }

    fused = _method("modelopt_fp4", declared, FUSED)
    assert isinstance(fused, Nvfp4DequantLinearMethod)
    o_proj = _method("modelopt_fp4", declared, O_PROJ)
    assert isinstance(o_proj, Fp8DequantLinearMethod)


def test_modelopt_mixed_precision_is_decided_by_layer():
    name = "model.language_model.layers.3.self_attn"
    declared = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            f"{name}.q_a_proj": {"quant_algo": "NVFP4", "group_size": 16},
            f"{name}.o_proj": {"quant_algo": "FP8"},
        },
    }

    fused = _method("modelopt_mixed", declared, FUSED)
    assert isinstance(fused, Nvfp4DequantLinearMethod)
    o_proj = _method("modelopt_mixed", declared, O_PROJ)
    assert isinstance(o_proj, Fp8DequantLinearMethod)


@pytest.mark.parametrize(
    ("target", "method"),
    [
        ("Linear", Nvfp4DequantLinearMethod),
        (r"re:.*self_attn\.q_a_proj", Nvfp4DequantLinearMethod),
        (r"re:.*mlp\.experts.*", Fp8DequantLinearMethod),
    ],
)
def test_compressed_tensors_is_decided_by_target(target: str, method: type):
    declared = _compressed_tensors(target)

    assert isinstance(_method("compressed-tensors", declared, FUSED), method)


def test_quark_mxfp4_is_four_bit():
    method = _method("quark", _quark(FP4_WEIGHT), FUSED)

    assert isinstance(method, Nvfp4DequantLinearMethod)


def test_quark_attention_in_fp8_beside_experts_in_mxfp4_is_eight_bit():
    by_layer = {"*self_attn*": {"weight": FP8_WEIGHT, "input_tensors": None}}
    declared = _quark(FP4_WEIGHT, layer_quant_config=by_layer)

    method = _method("quark", declared, FUSED)

    assert isinstance(method, Fp8DequantLinearMethod)
    assert method.config.weight_block_size == (64, 64)


def test_quark_layer_that_is_left_alone_may_be_in_the_fp8_of_the_original():
    declared = _quark(FP4_WEIGHT, exclude=[O_PROJ])

    assert isinstance(_method("quark", declared, O_PROJ), Fp8DequantLinearMethod)


MX_WEIGHTS = {
    "num_bits": 8,
    "type": "float",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
}
MX_COMPRESSED_TENSORS = {
    "quant_method": "compressed-tensors",
    "format": "mxfp8-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": MX_WEIGHTS}},
    "ignore": [],
}
MX_MODELOPT = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": []}
MX_MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {O_PROJ: {"quant_algo": "MXFP8"}},
}
MX_QUARK = _quark({"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 32})


@pytest.mark.parametrize(
    ("method", "declared"),
    [
        ("modelopt_mxfp8", MX_MODELOPT),
        ("modelopt_mixed", MX_MIXED),
        ("compressed-tensors", MX_COMPRESSED_TENSORS),
        ("quark", MX_QUARK),
    ],
    ids=["modelopt", "modelopt-mixed", "compressed-tensors", "quark"],
)
def test_mxfp8_has_blocks_of_a_row(method: str, declared: dict[str, Any]):
    chosen = _method(method, declared, O_PROJ)

    assert isinstance(chosen, Fp8DequantLinearMethod)
    assert chosen.config.weight_block_size == (1, 32)


def test_unquantized_checkpoint_has_no_config():
    assert dequant_config(None, SHARDS) is None
