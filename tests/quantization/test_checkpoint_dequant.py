# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A layer gets the blocks that its checkpoint declares for it."""

from typing import Any

import pytest

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.checkpoint_dequant import (
    CheckpointDequantConfig,
    dequant_config,
)
from vllm.model_executor.layers.quantization.row_dequant import RowDequantLinearMethod

SHARDS = {"fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa")}
FUSED = "model.layers.3.self_attn.fused_qkv_a_proj"
O_PROJ = "model.layers.3.self_attn.o_proj"

FP8_WEIGHT = {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [64, 64]}
FP4_WEIGHT = {"dtype": "fp4", "qscheme": "per_group", "block_size": [1, 32]}


def _linear() -> LinearBase:
    return LinearBase.__new__(LinearBase)


def _block(method: str, declared: dict[str, Any], prefix: str) -> tuple[int, int]:
    config = get_quantization_config(method).from_config(declared)
    chosen = CheckpointDequantConfig(config, SHARDS)
    chosen_method = chosen.get_quant_method(_linear(), prefix)
    assert isinstance(chosen_method, RowDequantLinearMethod)
    return chosen_method.weight_block_size


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
        "num_bits": 8,
        "type": "float",
        "strategy": "block",
        "block_structure": [64, 32],
        "symmetric": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": [target], "weights": weights}},
        "ignore": [O_PROJ],
    }


def test_fp8_has_the_blocks_of_its_checkpoint():
    declared = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [64, 32],
    }

    assert _block("fp8", declared, FUSED) == (64, 32)


def test_modelopt_says_nothing_of_blocks():
    declared = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": [O_PROJ],
    }

    assert _block("modelopt_fp4", declared, FUSED) == (128, 128)
    assert _block("modelopt_fp4", declared, O_PROJ) == (128, 128)


@pytest.mark.parametrize(
    ("target", "prefix", "block"),
    [
        ("Linear", FUSED, (64, 32)),
        ("Linear", O_PROJ, (128, 128)),
        (r"re:.*self_attn\.q_a_proj", FUSED, (64, 32)),
        (r"re:.*mlp\.experts.*", FUSED, (128, 128)),
    ],
)
def test_compressed_tensors_is_decided_by_target(
    target: str, prefix: str, block: tuple[int, int]
):
    declared = _compressed_tensors(target)

    assert _block("compressed-tensors", declared, prefix) == block


def test_quark_attention_has_blocks_of_its_own():
    by_layer = {"*self_attn*": {"weight": FP8_WEIGHT, "input_tensors": None}}
    declared = _quark(FP4_WEIGHT, layer_quant_config=by_layer)

    assert _block("quark", declared, FUSED) == (64, 64)


@pytest.mark.parametrize("further", [{}, {"exclude": [O_PROJ]}])
def test_quark_layer_without_blocks_may_be_in_the_fp8_of_the_original(further: dict):
    declared = _quark(FP4_WEIGHT, **further)

    assert _block("quark", declared, O_PROJ) == (128, 128)


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
    assert _block(method, declared, O_PROJ) == (1, 32)


def test_unquantized_checkpoint_has_no_config():
    assert dequant_config(None, SHARDS) is None
