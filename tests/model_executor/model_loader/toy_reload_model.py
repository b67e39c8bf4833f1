# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A model of fused layers, one for each thing that post-load processing may do.

Each layer has a weight of two shards and a scale for each shard, loaded by a weight
loader. The layers differ in their methods; everything else is vLLM's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)
from vllm.model_executor.utils import replace_parameter, retire_parameter

ROWS, COLUMNS, SHARDS = 4, 6, 2
NOT_LOADED = -1.0
Weights = dict[str, torch.Tensor]


class Identity(QuantizeMethodBase):
    """Leaves what was loaded as it is, and derives a buffer from it."""

    def create_weights(self, layer: torch.nn.Module, *args, **extra) -> None:
        weight = torch.empty(SHARDS * ROWS, COLUMNS)
        scale = torch.full((SHARDS,), NOT_LOADED)
        for name, data in (("weight", weight), ("scale", scale)):
            param = torch.nn.Parameter(data, requires_grad=False)
            param.weight_loader = layer.load  # type: ignore[attr-defined]
            layer.register_parameter(name, param)

    def apply(self, layer: torch.nn.Module, *args, **kwargs) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        total = layer.weight.sum() * layer.scale.sum()
        if hasattr(layer, "total"):
            layer.total.copy_(total)
        else:
            layer.register_buffer("total", total, persistent=False)

    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return True


class Transposed(Identity):
    """Views the weight the other way round."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        replace_parameter(layer, "weight", layer.weight.t())


class Transformed(Identity):
    """Folds the scales into the weight; shards without one are not scaled."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        scale = torch.where(layer.scale == NOT_LOADED, 1.0, layer.scale)
        folded = layer.weight * scale.repeat_interleave(ROWS)[:, None]
        replace_parameter(layer, "weight", folded)
        retire_parameter(layer, "scale")

    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return False


class Shrinking(Transformed):
    """Keeps the weight in half the bytes, and one scale."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        scale = layer.scale.max()
        replace_parameter(layer, "weight", (layer.weight * scale).bfloat16())
        replace_parameter(layer, "scale", scale)


class Growing(Transformed):
    """Pads the weight, and registers a second parameter."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        padded = torch.nn.functional.pad(layer.weight * layer.scale.sum(), (0, 2))
        replace_parameter(layer, "weight", padded)
        alpha = torch.nn.Parameter(1 / layer.scale, requires_grad=False)
        layer.register_parameter("alpha", alpha)


class Released(Transformed):
    """Holds the weight elsewhere and frees the parameter's storage."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.packed = layer.weight * layer.scale.sum()
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


METHODS: dict[str, type[Identity]] = {
    "identity": Identity,
    "transposed": Transposed,
    "transformed": Transformed,
    "shrinking": Shrinking,
    "growing": Growing,
    "released": Released,
}


class ToyLayer(torch.nn.Module):
    """One fused layer."""

    def __init__(self, method: Identity):
        super().__init__()
        self.quant_method = method
        method.create_weights(self)

    def load(
        self, param: torch.nn.Parameter, loaded_weight: torch.Tensor, shard_id: int
    ) -> None:
        size = param.shape[0] // SHARDS
        target = param.data.narrow(0, shard_id * size, size)
        assert target.shape == loaded_weight.shape
        target.copy_(loaded_weight)


class ToyReloadModel(torch.nn.Module):
    """Layers by the names of their methods, and a norm that no method processes."""

    def __init__(self, methods: Iterable[str] = METHODS):
        super().__init__()
        for name in methods:
            self.add_module(name, ToyLayer(METHODS[name]()))
        self.norm = torch.nn.LayerNorm(COLUMNS, bias=False).requires_grad_(False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        params = dict(self.named_parameters())
        loaded = set()
        for name, tensor in weights:
            if name == "norm.weight":
                loader = getattr(params[name], "weight_loader", _default_loader)
                loader(params[name], tensor)
            else:
                param_name, _, shard = name.rpartition(".")
                param: Any = params[param_name]
                param.weight_loader(param, tensor, int(shard))
            loaded.add(name)
        return loaded


def _default_loader(param: torch.Tensor, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight)


def make_weights(seed: int, methods: Iterable[str] = METHODS) -> Weights:
    """A checkpoint of the toy model, in its natural order."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for method in methods:
        for shard in range(SHARDS):
            weight = torch.randn(ROWS, COLUMNS, generator=generator)
            weights[f"{method}.weight.{shard}"] = weight
            scale = torch.rand(1, generator=generator) + 0.5
            weights[f"{method}.scale.{shard}"] = scale
    weights["norm.weight"] = torch.randn(COLUMNS, generator=generator)
    return weights


def cold_start(weights: Mapping[str, torch.Tensor] | None) -> ToyReloadModel:
    """A model that has loaded a checkpoint, or nothing, and was processed."""
    names = {name.partition(".")[0] for name in weights or METHODS} - {"norm"}
    model = ToyReloadModel([method for method in METHODS if method in names])
    record_metadata_for_reloading(model)
    observe_first_load(model)
    if weights is not None:
        model.load_weights(weights.items())
    else:
        for param in model.parameters():
            param.data.fill_(0.5)
    end_first_load(model)
    for layer in model.children():
        if isinstance(layer, ToyLayer):
            layer.quant_method.process_weights_after_loading(layer)
    return model
