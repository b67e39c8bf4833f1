# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A toy model, and a weight transfer engine that is handed its weights in the call."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch

from vllm.config import ModelConfig, VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

Weights = dict[str, torch.Tensor]

LAYERS = ("first", "second")
SIZE = 4
MODEL_CONFIG = cast(ModelConfig, SimpleNamespace(dtype=torch.float32))


class ToyModel(torch.nn.Module):
    """Two linear layers, which nothing processes after they were loaded."""

    def __init__(self) -> None:
        super().__init__()
        for name in LAYERS:
            self.add_module(name, torch.nn.Linear(SIZE, SIZE).requires_grad_(False))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            param = self.get_parameter(name)
            loader = getattr(param, "weight_loader", default_weight_loader)
            loader(param, tensor)
            loaded.add(name)
        return loaded


def toy_weights(value: float) -> Weights:
    """All weights of a toy model, each filled with one value."""
    return {
        f"{layer}.{name}": torch.full(shape, value)
        for layer in LAYERS
        for name, shape in (("weight", (SIZE, SIZE)), ("bias", (SIZE,)))
    }


def bad_weights() -> Weights:
    """Weights of which the last does not fit."""
    return {**toy_weights(7.0), "second.bias": torch.zeros(SIZE + 1)}


def loaded_toy_model(value: float) -> ToyModel:
    """A toy model as vLLM's loader leaves it."""
    model = ToyModel()
    record_metadata_for_reloading(model)
    observe_first_load(model)
    model.load_weights(toy_weights(value).items())
    end_first_load(model)
    return model


def values(model: torch.nn.Module) -> set[float]:
    """All values that the model's parameters hold."""
    return {value for param in model.parameters() for value in param.flatten().tolist()}


def vllm_config() -> VllmConfig:
    """What a transfer engine reads of the configuration."""
    parallel_config = SimpleNamespace(pipeline_parallel_size=1)
    return cast(
        VllmConfig,
        SimpleNamespace(parallel_config=parallel_config, model_config=MODEL_CONFIG),
    )


@dataclass
class _InitInfo(WeightTransferInitInfo):
    pass


@dataclass
class _UpdateInfo(WeightTransferUpdateInfo):
    weights: Weights


class LocalEngine(WeightTransferEngine[_InitInfo, _UpdateInfo]):
    """Loads what it is handed, as transports do with what they receive."""

    init_info_cls = _InitInfo
    update_info_cls = _UpdateInfo
    supports_direct_reload = True

    def init_transfer_engine(self, init_info: _InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        start_reload(self.model, self.config.reload_mode)

    def finish_weight_update(self) -> None:
        finish_reload(self.model, self.model_config)

    def receive_weights(self, update_info: _UpdateInfo) -> None:
        self.model.load_weights(update_info.weights.items())  # type: ignore[operator]

    def shutdown(self) -> None:
        pass


def make_engine(
    engine_class: type[WeightTransferEngine], model: torch.nn.Module, **config: Any
) -> Any:
    """An engine for a model on the CPU."""
    return engine_class(
        WeightTransferConfig(**config), vllm_config(), torch.device("cpu"), model
    )
