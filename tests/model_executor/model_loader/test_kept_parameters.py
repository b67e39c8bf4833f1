# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Who goes through a model's parameters, with moved and with retired ones.

Real layers: that of `ct-nvfp4` moves its weight, that of `modelopt-nvfp4` retires two
scales, and that of `wNa8o8-int4` shrinks a weight that it moves.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_checks import (
    load,
    loaded_parameters,
    process,
    quantization_process,
    value_of,
)
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.layers.utils import _get_lora_device
from vllm.model_executor.model_loader import utils as loader_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.weight_cache.daemon import export_entries
from vllm.model_executor.model_loader.weight_cache.ipc_loader import IpcModelLoader
from vllm.model_executor.offloader import uva
from vllm.model_executor.utils import kernel_parameters, retire_parameter
from vllm.v1.worker import gpu_worker

KEPT = ["ct-nvfp4", "modelopt-nvfp4", "wNa8o8-int4"]


@pytest.fixture(scope="module", autouse=True)
def _process() -> Iterator[None]:
    with quantization_process():
        yield


def _model(name: str) -> torch.nn.Module:
    """A model of one layer, loaded and processed."""
    case = cases()[name]
    layer = case.build()
    load(layer, loaded_parameters(layer))
    process(layer, case)
    return torch.nn.ModuleDict({"layer": layer})


def _content(tensors: dict[str, torch.Tensor]) -> dict[str, object]:
    return {name: value_of(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", KEPT)
def test_the_weight_cache_passes_on_names_and_what_is_retired(name: str):
    served = _model(name)
    with torch.device("meta"):
        model: Any = torch.nn.ModuleDict({"layer": cases()[name].build()})
    entries, aliases = export_entries(served)
    loader: Any = SimpleNamespace(mode="copy")

    state: Any = SimpleNamespace(entries=entries, aliases=aliases)
    IpcModelLoader._apply_entries(loader, model, state, 0)

    layer, original = model["layer"], served["layer"]
    assert list(kernel_parameters(layer)) == list(kernel_parameters(original))
    assert _content(dict(model.state_dict())) == _content(served.state_dict())
    names = dict(model.named_parameters())
    assert list(names) == list(dict(served.named_parameters()))


@pytest.mark.parametrize("name", KEPT)
def test_sharded_state_is_what_kernels_read(name: str, tmp_path: Path):
    model = _model(name)
    live = {f"layer.{n}" for n in kernel_parameters(model["layer"])}

    ShardedStateLoader.save_model(model, str(tmp_path), "state-{rank}-{part}")

    assert set(load_file(tmp_path / "state-0-0")) == live


def test_sharded_state_fits_a_model_that_has_been_processed(tmp_path: Path):
    model = _model("ct-nvfp4")
    saved = {n: t.clone() for n, t in model.state_dict().items()}
    pattern = "state-{rank}-{part}"
    ShardedStateLoader.save_model(model, str(tmp_path), pattern)
    for param in model.parameters():
        param.data.view(torch.uint8).zero_() if param.dim() else param.data.zero_()
    loader: Any = ShardedStateLoader.__new__(ShardedStateLoader)
    loader.pattern = pattern
    loader.load_config = SimpleNamespace(load_format="sharded_state")
    config: Any = SimpleNamespace(model=str(tmp_path), model_weights=None)

    loader.load_weights(model, config)

    assert _content(model.state_dict()) == _content(saved)


@pytest.mark.parametrize("name", KEPT)
def test_lora_finds_the_weight_that_the_kernel_reads(name: str):
    layer = _model(name)["layer"]
    lora: Any = SimpleNamespace(base_layer=layer)

    weight = BaseLinearLayerWithLoRA.weight.fget(lora)  # type: ignore[attr-defined]

    assert any(weight is param for param in kernel_parameters(layer).values())
    assert _get_lora_device(layer) == weight.device


def test_lora_finds_the_device_of_a_layer_whose_weight_is_retired():
    layer = _model("ct-nvfp4")["layer"]
    retire_parameter(layer, "weight")

    assert _get_lora_device(layer) == torch.device("cpu")


@pytest.mark.parametrize("name", KEPT)
def test_every_checkpoint_name_that_was_loaded_still_counts(name: str):
    case = cases()[name]
    layer = case.build()
    model = torch.nn.ModuleDict({"layer": layer})
    loaded = {f"layer.{n}" for n in loaded_parameters(layer)}
    loader: Any = DefaultModelLoader.__new__(DefaultModelLoader)
    loader.track_weights_loading(model, set(loaded), quantized=True)
    load(layer, loaded_parameters(layer))
    process(layer, case)
    derived = {n for n, _ in model.named_parameters()} - loaded

    loader.track_weights_loading(model, loaded | derived, quantized=True)
    with pytest.raises(ValueError, match="not initialized"):
        loader.track_weights_loading(model, derived, quantized=True)


@pytest.mark.parametrize("name", KEPT)
def test_offloading_moves_an_object_once_for_all_of_its_names(name: str):
    model = _model(name)

    state = uva._state_on(model, torch.device("meta"))

    assert list(state) == list(model.state_dict())
    objects = dict(model.named_parameters(remove_duplicate=False))
    for first in state:
        for second in state:
            one = objects[first] is objects[second]
            assert (state[first] is state[second]) == one


@pytest.mark.parametrize("name", KEPT)
def test_a_copy_on_the_host_has_as_much_room(name: str):
    layer = _model(name)["layer"]

    for param in layer.parameters():
        host = loader_utils._copy_to_host(layer, param, pin_memory=False)

        assert host.untyped_storage().nbytes() == param.untyped_storage().nbytes()
        assert host.stride() == param.stride()
        assert value_of(host) == value_of(param)


def test_a_storage_of_several_parameters_is_not_copied_for_each():
    fused = torch.zeros(4, 2)
    layer = torch.nn.Module()
    layer.first = torch.nn.Parameter(fused[:1], requires_grad=False)
    layer.second = torch.nn.Parameter(fused[1:], requires_grad=False)

    host = loader_utils._copy_to_host(layer, layer.first, pin_memory=False)

    assert host.untyped_storage().nbytes() == layer.first.numel() * 4


@pytest.mark.parametrize("name", ["layer.weight", "layer.weight_packed", "*.weight*"])
def test_sleep_knows_a_parameter_under_each_of_its_names(name: str):
    model = _model("ct-nvfp4")
    worker: Any = gpu_worker.Worker.__new__(gpu_worker.Worker)
    worker.model_config = SimpleNamespace(sleep_preserve_parameter_names=[name])
    worker.get_draft_model = lambda: None

    worker._save_sleep_parameters(model)

    # What is on the host is not saved.
    assert worker._sleep_saved_parameters == {}


def test_sleep_saves_an_object_once():
    model = _model("ct-nvfp4")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    both = {"layer.weight", "layer.weight_packed"}

    chosen = gpu_worker._each_once(parameters, both | {"layer.weight_scale"})

    assert len(chosen) == 2
    assert "layer.weight_scale" in chosen
