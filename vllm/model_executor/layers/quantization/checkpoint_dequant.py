# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which of the in-place methods a layer gets, by what its checkpoint declares.

The method decides how wide the packed tensors are that the layer takes: four bits or
eight. All else is decided tensor by tensor, by `parameter_for` of the method.
Unquantized tensors load into either, so it does not matter whether a checkpoint
declares the layers that it leaves unquantized.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import QuantizationMethods
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (  # noqa: E501
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.compressed_tensors.utils import (
    should_ignore_layer,
)
from vllm.model_executor.layers.quantization.fp8_dequant import Fp8DequantConfig
from vllm.model_executor.layers.quantization.modelopt import (
    ModelOptMixedPrecisionConfig,
    ModelOptMxFp8Config,
    ModelOptNvFp4Config,
)
from vllm.model_executor.layers.quantization.nvfp4_dequant import Nvfp4DequantConfig
from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig
from vllm.model_executor.layers.quantization.row_dequant import RowDequantConfig

_MXFP8_BLOCK = (1, 32)


class CheckpointDequantConfig(RowDequantConfig):
    """Gives each layer the method for what its checkpoint declares it to be."""

    def __init__(
        self, checkpoint: QuantizationConfig, shards: Mapping[str, Sequence[str]]
    ) -> None:
        """Makes a config.

        Args:
            checkpoint: The quantization of the checkpoint.
            shards: Of each fused layer, by the last part of its name, the checkpoint's
                names of its shards.
        """
        super().__init__()
        self.checkpoint = checkpoint
        self.shards = shards

    def get_name(self) -> QuantizationMethods:
        return cast(QuantizationMethods, "checkpoint_dequant")

    def get_quant_method(
        self, layer: torch.nn.Module, prefix: str
    ) -> QuantizeMethodBase | None:
        if not isinstance(layer, LinearBase):
            return None
        parent, dot, own = prefix.rpartition(".")
        first = self.shards.get(own, (own,))[0]
        names = _spellings(f"{parent}{dot}{first}")
        return _declared(self.checkpoint, layer, names).get_quant_method(layer, prefix)


def dequant_config(
    checkpoint: QuantizationConfig | None, shards: Mapping[str, Sequence[str]]
) -> CheckpointDequantConfig | None:
    """The config for layers that run unquantized, whatever the checkpoint stores.

    It is for linear layers only, never for attention: that a projection is quantized
    says nothing about the KV cache.

    Args:
        checkpoint: The quantization of the checkpoint, or None if it has none.
        shards: As of `CheckpointDequantConfig`.

    Returns:
        None if the checkpoint is not quantized.
    """
    return None if checkpoint is None else CheckpointDequantConfig(checkpoint, shards)


def _spellings(name: str) -> list[str]:
    """The names that a layer may have in a config.

    A draft model that is text only reads the config of a multimodal checkpoint, which
    may have been mapped to the names of the multimodal model.
    """
    if "language_model." in name:
        return [name]
    inner = name.removeprefix("model.")
    return [name, f"model.language_model.{inner}", f"language_model.model.{inner}"]


def _declared(
    checkpoint: QuantizationConfig, layer: torch.nn.Module, names: Iterable[str]
) -> RowDequantConfig:
    """The config for the format that the checkpoint declares for a layer.

    A layer that a quantizer left alone may be in the FP8 of the original checkpoint.
    """
    if isinstance(checkpoint, ModelOptNvFp4Config):
        left_alone = any(checkpoint.is_layer_excluded(name) for name in names)
        return Fp8DequantConfig() if left_alone else Nvfp4DequantConfig()
    if isinstance(checkpoint, ModelOptMixedPrecisionConfig):
        algorithms = (checkpoint._resolve_quant_algo(name) for name in names)
        algorithm = next(filter(None, algorithms), "")
        return _config("FP4" in algorithm, _MXFP8_BLOCK if "MX" in algorithm else None)
    if isinstance(checkpoint, ModelOptMxFp8Config):
        return _config(False, _MXFP8_BLOCK)
    if isinstance(checkpoint, CompressedTensorsConfig):
        weights = _compressed_tensors_weights(checkpoint, layer, names)
        return _config(weights.get("num_bits") == 4, _block(weights, "block_structure"))
    if isinstance(checkpoint, QuarkConfig):
        weights = _quark_weights(checkpoint, names)
        return _config(weights.get("dtype") == "fp4", _block(weights, "block_size"))
    return _config(False, getattr(checkpoint, "weight_block_size", None))


def _block(weights: Mapping[str, Any], key: str) -> Sequence[int] | None:
    """Rows and columns of a block, or of a group within a row."""
    group = weights.get("group_size") or 0
    return weights.get(key) or ((1, group) if group > 0 else None)


def _config(four_bit: bool, block: Sequence[int] | None) -> RowDequantConfig:
    if four_bit:
        return Nvfp4DequantConfig()
    return Fp8DequantConfig((block[0], block[1])) if block else Fp8DequantConfig()


def _compressed_tensors_weights(
    checkpoint: CompressedTensorsConfig, layer: torch.nn.Module, names: Iterable[str]
) -> Mapping[str, Any]:
    """What is said of a layer's weight, or nothing if it is left alone."""
    fused = checkpoint.packed_modules_mapping
    if any(should_ignore_layer(name, checkpoint.ignore, fused) for name in names):
        return {}
    schemes = (checkpoint.get_scheme_dict(layer, name) for name in names)
    scheme: Any = next(filter(None, schemes), None)
    return scheme["weights"].model_dump() if scheme and scheme["weights"] else {}


def _quark_weights(checkpoint: QuarkConfig, names: Iterable[str]) -> Mapping[str, Any]:
    """What is said of a layer's weight, or nothing if it is left alone."""
    config = checkpoint.quant_config
    excluded = cast(list[str], config.get("exclude") or [])
    fused = checkpoint.packed_modules_mapping
    if any(should_ignore_layer(name, excluded, fused) for name in names):
        return {}
    by_layer = (checkpoint.get_layer_quant_config_from_name(name) for name in names)
    declared = next(filter(None, by_layer), None) or config.get("global_quant_config")
    weights: Any = cast(dict[str, Any], declared or {}).get("weight") or {}
    return weights[0] if isinstance(weights, list) else weights
