# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Gives linear layers that run unquantized the method that unpacks their checkpoint.

Of what a checkpoint declares, the size of the blocks of block-FP8 matters. All else
about the format of a tensor is decided tensor by tensor, by `parameter_for` of the
method.
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
from vllm.model_executor.layers.quantization.modelopt import (
    ModelOptMixedPrecisionConfig,
    ModelOptMxFp8Config,
)
from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig
from vllm.model_executor.layers.quantization.row_dequant import RowDequantLinearMethod
from vllm.model_executor.layers.quantization.utils.packed_rows import RUNTIME_DTYPES

_MXFP8_BLOCK = (1, 32)


class RowDequantConfig(QuantizationConfig):
    """For linear layers that a checkpoint may quantize and that run in bfloat16.

    It is not a quantization that a user can ask for. A model makes one for the layers
    that it runs unquantized, and passes it to them in place of the checkpoint's config.
    """

    def __init__(self, weight_block_size: tuple[int, int] = (128, 128)) -> None:
        """Makes a config.

        Args:
            weight_block_size: Rows and columns that share a scale of block-FP8.
        """
        super().__init__()
        self.weight_block_size = weight_block_size

    def get_name(self) -> QuantizationMethods:
        return cast(QuantizationMethods, "row_dequant")

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return list(RUNTIME_DTYPES)

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RowDequantConfig":
        return cls()

    def get_quant_method(
        self, layer: torch.nn.Module, prefix: str
    ) -> QuantizeMethodBase | None:
        if not isinstance(layer, LinearBase):
            return None
        return RowDequantLinearMethod(self.weight_block_size)


class CheckpointDequantConfig(RowDequantConfig):
    """Gives each layer the blocks that its checkpoint declares for it."""

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
        block = _block_size(self.checkpoint, layer, names)
        if not block:
            return RowDequantLinearMethod()
        return RowDequantLinearMethod((block[0], block[1]))


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


def _block_size(
    checkpoint: QuantizationConfig, layer: torch.nn.Module, names: Iterable[str]
) -> Sequence[int] | None:
    """Rows and columns of a block, or None if nothing is said of them."""
    if isinstance(checkpoint, ModelOptMixedPrecisionConfig):
        algorithms = (checkpoint._resolve_quant_algo(name) for name in names)
        return _MXFP8_BLOCK if next(filter(None, algorithms), "") == "MXFP8" else None
    if isinstance(checkpoint, ModelOptMxFp8Config):
        return _MXFP8_BLOCK
    if isinstance(checkpoint, CompressedTensorsConfig):
        weights = _compressed_tensors_weights(checkpoint, layer, names)
        return _of_eight_bits(weights, "block_structure")
    if isinstance(checkpoint, QuarkConfig):
        weights = _quark_weights(checkpoint, names)
        return _of_eight_bits(weights, "block_size")
    return getattr(checkpoint, "weight_block_size", None)


def _of_eight_bits(weights: Mapping[str, Any], block: str) -> Sequence[int] | None:
    """The block that is declared under a name, or a group within a row."""
    if weights.get("num_bits") == 4 or weights.get("dtype") == "fp4":
        return None
    group = weights.get("group_size") or 0
    return weights.get(block) or ((1, group) if group > 0 else None)


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
