# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Toy models for a layerwise reload, here and on stock vLLM.

Layers, quantization methods and weight loaders are toys; what records, buffers,
processes and puts back is vLLM's. New memory is poisoned: see `poisoned_memory`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

from tests.glm5_parameters import poisoned_memory
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    record_metadata_for_reloading,
)
from vllm.model_executor.model_loader.reload.layerwise import (
    initialize_online_processing,
)

try:
    from vllm.model_executor.model_loader.reload import abort_layerwise_reload
    from vllm.model_executor.model_loader.reload.first_load import (
        end_first_load,
        observe_first_load,
    )
except ImportError:  # stock vLLM

    def abort_layerwise_reload(model: torch.nn.Module) -> None:
        """Stock has nothing of the kind."""

    observe_first_load = end_first_load = abort_layerwise_reload

ROWS, COLUMNS, SHARDS = 4, 6, 2
CONFIG: Any = SimpleNamespace(dtype=torch.float32)
Weights = list[tuple[str, torch.Tensor]]


class Identity(QuantizeMethodBase):
    """Leaves what was loaded as it is."""

    keeps = True

    def create_weights(self, layer: torch.nn.Module, *args, **extra) -> None:
        raise NotImplementedError

    def apply(self, layer: torch.nn.Module, *args, **kwargs) -> torch.Tensor:
        raise NotImplementedError

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        pass

    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return self.keeps


class Folded(Identity):
    """Folds the scale of each shard into its rows, in place."""

    keeps = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        scale = layer.scale.repeat_interleave(ROWS)
        layer.weight.data[: SHARDS * ROWS] *= scale[:, None]


class Transposed(Identity):
    """Views the weight the other way round."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.weight.data = layer.weight.data.t()


class Wrapped(Identity):
    """Wraps the weight in a tensor that holds two others, as torchao does."""

    keeps = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        wrapped = TwoTensor(layer.weight.data, layer.weight.data * 2)
        layer.weight = torch.nn.Parameter(wrapped, requires_grad=False)


class ToyLayer(torch.nn.Module):
    """A weight and a scale of two shards, and a limit that each shard brings."""

    def __init__(self, method: QuantizeMethodBase, padding: int = 0):
        super().__init__()
        self.quant_method = method
        rows = SHARDS * ROWS
        weight = torch.empty(rows, COLUMNS)
        if padding:
            weight = torch.zeros(rows + padding, COLUMNS)
        self._add("weight", weight, self.load)
        self._add("scale", torch.empty(SHARDS), self.load)
        self._add("limit", torch.empty(1), self.load_limit)
        if padding:
            self.weight.weight_loader_numel = rows * COLUMNS

    def _add(self, name: str, data: torch.Tensor, loader: Callable[..., None]) -> None:
        param = torch.nn.Parameter(data, requires_grad=False)
        param.weight_loader = loader  # type: ignore[attr-defined]
        self.register_parameter(name, param)

    def load(
        self, param: torch.Tensor, loaded_weight: torch.Tensor, shard_id: int
    ) -> None:
        size = loaded_weight.shape[0]
        param.data.narrow(0, shard_id * size, size).copy_(loaded_weight)

    def load_limit(
        self, param: torch.Tensor, loaded_weight: torch.Tensor, shard_id: int
    ) -> None:
        param.data.copy_(loaded_weight)


class Online(Identity):
    """Creates the weight on the meta device, and quantizes it when it is loaded."""

    uses_meta_device = True
    keeps = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        scale = layer.weight.abs().max() / 127
        quantized = (layer.weight / scale).round().to(torch.int8)
        layer.weight = torch.nn.Parameter(quantized.t(), requires_grad=False)
        layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)


class OnlineLayer(ToyLayer):
    """A weight of two shards that is quantized online."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.quant_method = Online()
        weight = torch.empty(SHARDS * ROWS, COLUMNS, device="meta")
        self._add("weight", weight, self.load)
        initialize_online_processing(self)


class ToyModel(torch.nn.Module):
    """Fused layers, called `0`, `1` and so on."""

    def __init__(self, *layers: torch.nn.Module):
        super().__init__()
        for name, layer in enumerate(layers):
            self.add_module(str(name), layer)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        params = dict(self.named_parameters())
        for name, tensor in weights:
            param_name, _, shard = name.rpartition(".")
            param = params[param_name]
            param.weight_loader(param, tensor, int(shard))  # type: ignore[attr-defined]


class Embedding(torch.nn.Module):
    """Word embeddings, or a head that may be tied to them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(ROWS, COLUMNS), requires_grad=False
        )


class TiedModel(torch.nn.Module):
    """A model whose lm_head is tied after it was loaded with equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = Embedding()
        self.lm_head = Embedding()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        params = dict(self.named_parameters(remove_duplicate=False))
        for name, tensor in weights:
            param = params[name]
            getattr(param, "weight_loader", default_weight_loader)(param, tensor)


class HookedModel(ToyModel):
    """A model that derives a total from its weights, in a hook of its own."""

    reload_safe_post_load = True

    def __init__(self, *layers: torch.nn.Module):
        super().__init__(*layers)
        self.total = torch.zeros(())
        self.calls = 0

    def process_weights_after_loading(self) -> None:
        self.total.copy_(self.get_parameter("0.weight").sum())
        self.calls += 1


class UndeclaredHookModel(HookedModel):
    """The same, without saying that the hook may run again."""

    reload_safe_post_load = False


def make_weights(seed: int, layers: int = 1) -> Weights:
    """A checkpoint of a toy model, in its natural order."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for layer in range(layers):
        for name, shape in (("weight", (ROWS, COLUMNS)), ("scale", (1,))):
            for shard in range(SHARDS):
                tensor = torch.rand(shape, generator=generator) + 0.5
                weights.append((f"{layer}.{name}.{shard}", tensor))
        for shard in range(SHARDS):
            limit = torch.rand(1, generator=generator)
            weights.append((f"{layer}.limit.{shard}", limit))
    return weights


def cold_start(model: Any, weights: Weights | None) -> Any:
    """Loads a checkpoint, or dummy weights, into a new model, and processes it."""
    record_metadata_for_reloading(model)
    observe_first_load(model)
    if weights is not None:
        model.load_weights(weights)
    else:
        for param in model.parameters():
            param.data.fill_(0.5)
    end_first_load(model)
    for layer in model.children():
        if isinstance(layer, ToyLayer):
            layer.quant_method.process_weights_after_loading(layer)
    if hasattr(model, "process_weights_after_loading"):
        model.process_weights_after_loading()
    return model


def reload(model: Any, *calls: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Reloads a model by upstream's names, aborting where that is possible."""
    with poisoned_memory():
        initialize_layerwise_reload(model)
        try:
            for weights in calls:
                model.load_weights(weights)
            finalize_layerwise_reload(model, CONFIG)
        except BaseException:
            abort_layerwise_reload(model)
            raise


def contents(model: torch.nn.Module) -> dict[str, bytes]:
    """The bytes of every parameter."""
    return {
        name: param.detach().contiguous().numpy().tobytes()
        for name, param in model.named_parameters()
    }


def use_partial_loader(layer: ToyLayer) -> ToyLayer:
    """Gives the weight a loader that is a partial, which has no name."""
    layer.weight.weight_loader = partial(ToyLayer.load, layer)  # type: ignore
    return layer
