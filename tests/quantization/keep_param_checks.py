# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Loads and processes a layer, and tells what became of its loaded parameters."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from tests.quantization.keep_param_cases import cases
from tests.quantization.keep_param_layers import Case
from tests.quantization.keep_param_moe_layers import (
    expert_shards,
    moe_operators,
    tensors_of_experts,
)
from tests.quantization.keep_param_operators import operators
from tests.tensor_parallel import tensor_parallel_group

SEED = 0
STALE = 0x55
"""What every byte of a storage is before it is loaded again."""

WORKSPACES = {"method.rows_per_expert"}
"""Tensors that nobody has written before the first forward pass."""


@dataclass(frozen=True)
class Loaded:
    """A parameter that a loader can write, before post-load processing."""

    param: torch.nn.Parameter
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int


class Value(NamedTuple):
    """A tensor, to be compared to the byte and across processes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    content: bytes


@dataclass(frozen=True)
class Outcome:
    """What post-load processing made of a layer.

    Attributes:
        losses: What became of loaded parameters that it should not; empty if nothing.
        values: Tensors and numbers that a forward pass can read, by name. None is what
            a kernel asks for and does not get.
        live: Names of the parameters that are left for the kernel.
        nbytes: Bytes of the storages that the layer, its method and its kernel hold.
    """

    losses: list[str]
    values: dict[str, Value | None]
    live: set[str]
    nbytes: int


@contextmanager
def quantization_process() -> Iterator[None]:
    """What building and processing the layers needs; nests in no other."""
    from vllm.config import VllmConfig, set_current_vllm_config

    config: Any = VllmConfig()
    config.model_config = SimpleNamespace(
        dtype=torch.bfloat16, hf_config=SimpleNamespace()
    )
    with (
        moe_operators(),
        tensor_parallel_group(),
        set_current_vllm_config(config),
        operators(),
    ):
        yield


def loaded_parameters(layer: torch.nn.Module) -> dict[str, Loaded]:
    """What a loader can write in a layer that has just been built."""
    return {
        name: Loaded(
            param,
            param.shape,
            param.stride(),
            param.dtype,
            param.untyped_storage().nbytes(),
        )
        for name, param in layer.named_parameters()
    }


def load(layer: torch.nn.Module, names: Iterable[str]) -> None:
    """Loads what a checkpoint has under these names, by the weight loaders."""
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    generator = torch.Generator().manual_seed(SEED)
    params = dict(layer.named_parameters())
    for name in names:
        param = params[name]
        if param.numel() == 0:
            continue  # A placeholder that no loader writes.
        loader = getattr(param, "weight_loader", default_weight_loader)
        for arguments in _shards(layer, name, param, generator):
            loader(param, *arguments)


def load_whole(layer: torch.nn.Module, names: Iterable[str]) -> None:
    """Loads routed experts, all of a parameter at once, by the weight loaders."""
    generator = torch.Generator().manual_seed(SEED)
    params: dict[str, Any] = dict(layer.named_parameters())
    for name in names:
        param = params[name]
        content = _random(param.shape, param.dtype, generator)
        param.weight_loader(param, content, name, name.partition("_")[0], 0)


def _shards(
    layer: torch.nn.Module, name: str, param: torch.Tensor, generator: torch.Generator
) -> Iterator[tuple[Any, ...]]:
    """The checkpoint's tensors for a parameter, with the shard each is for."""
    if hasattr(layer, "moe_config"):
        yield from expert_shards(
            layer, name, param, lambda *what: _random(*what, generator)
        )
        return
    sizes = getattr(layer, "output_sizes", None)
    if sizes is None or type(param) is torch.nn.Parameter:
        yield (_random(param.shape, param.dtype, generator),)
        return
    per_shard = type(param).__name__ == "PerTensorScaleParameter"
    for shard, _ in enumerate(sizes):
        shape = list(param.shape)
        if per_shard:
            shape = []
        elif hasattr(param, "output_dim"):
            shape[param.output_dim] //= len(sizes)
        elif shard > 0:
            return  # One value for all shards: a second load would write it again.
        yield _random(shape, param.dtype, generator), shard


def _random(shape: Any, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(
            info.min, info.max, shape, dtype=dtype, generator=generator
        )
    return (torch.rand(shape, generator=generator) + 0.1).to(dtype)


def restore_model_format(loaded: dict[str, Loaded]) -> None:
    """Views each parameter as it was created, over the storage that it has now."""
    for entry in loaded.values():
        storage = entry.param.untyped_storage()
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(STALE)
        view = torch.empty(0, dtype=entry.dtype)
        entry.param.data = view.set_(storage, 0, entry.shape, entry.stride)


def process(layer: torch.nn.Module, case: Case) -> None:
    """Runs post-load processing, as a model loader does."""
    with case.processing():
        layer.quant_method.process_weights_after_loading(layer)


def outcome(layer: torch.nn.Module, loaded: dict[str, Loaded]) -> Outcome:
    """What post-load processing made of the layer."""
    storages = {}
    for _, held in _held(layer):
        if isinstance(held, torch.Tensor):
            storage = held.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return Outcome(
        losses=[
            f"{name} {loss}"
            for name, entry in loaded.items()
            for loss in _losses(layer, name, entry)
        ],
        values=dict(_values(layer)),
        live=_live_names(layer),
        nbytes=sum(storages.values()),
    )


def _losses(layer: torch.nn.Module, name: str, loaded: Loaded) -> Iterator[str]:
    now = layer._parameters.get(name)
    if now is None:
        yield "is no longer registered"
    elif now is not loaded.param:
        yield "is another object"
    elif now.untyped_storage().nbytes() < loaded.nbytes:
        yield "has a smaller storage"
    storage = loaded.param.untyped_storage().data_ptr()
    if storage == 0:
        return  # Empty tensors share nothing.
    for other_name, other in layer._parameters.items():
        if other is None or other is loaded.param:
            continue
        if other.untyped_storage().data_ptr() == storage:
            yield f"shares its storage with {other_name}, another object"


def _live_names(layer: torch.nn.Module) -> set[str]:
    try:
        from vllm.model_executor.utils import kernel_parameters
    except ImportError:
        params = layer._parameters.items()
        names = {id(p): name for name, p in params if p is not None and p.numel() > 0}
        return set(names.values())  # The last name is the one that kernels read.
    return set(kernel_parameters(layer))


def _values(layer: torch.nn.Module) -> Iterator[tuple[str, Value | None]]:
    """Everything that the layer, its method and its kernel hold."""
    for name, held in _held(layer):
        found = value_of(torch.as_tensor(held))
        if found is not None and name not in WORKSPACES:
            yield name, found
    for name, tensor in tensors_of_experts(layer.quant_method):
        yield name, value_of(tensor)
    for prefix, holder in _holders(layer).items():
        if prefix not in ("", "method.", "scheme."):
            yield from _read_by(layer, holder)


def _held(layer: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | float]]:
    """The tensors and numbers, by who holds them and under which name."""
    for prefix, holder in _holders(layer).items():
        held = {**vars(holder)} if holder is not None else {}
        for group in ("_parameters", "_buffers"):
            held |= held.pop(group, {})
        for name, value in held.items():
            if isinstance(value, (torch.Tensor, float)):
                yield prefix + name, value


def _holders(layer: torch.nn.Module) -> dict[str, Any]:
    """The layer, its method, its scheme and its kernel, each by its prefix."""
    holders = {"": layer, "method.": layer.quant_method}
    for parent in (layer, layer.quant_method):
        for name in ("scheme", "kernel", "fp8_linear", "linear_kernel"):
            holders[f"{name}."] = getattr(parent, name, holders.get(f"{name}."))
    scheme = holders["scheme."]
    for name in ("kernel", "fp8_linear", "linear_kernel"):
        holders[f"{name}."] = getattr(scheme, name, holders[f"{name}."])
    return holders


def _read_by(layer: torch.nn.Module, kernel: Any) -> Iterator[tuple[str, Value | None]]:
    """What a kernel that may read zero points gets."""
    from vllm.model_executor.kernels.linear.mixed_precision import MPLinearKernel
    from vllm.model_executor.kernels.linear.mixed_precision.humming import (
        HummingLinearKernel,
    )
    from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
        Int8ScaledMMLinearKernel,
    )

    read: tuple[torch.Tensor | None, ...] = ()
    if isinstance(kernel, HummingLinearKernel):
        return  # By names of its own, which are the layer's.
    if isinstance(kernel, MPLinearKernel):
        read = kernel._get_weight_params(layer)
    elif isinstance(kernel, Int8ScaledMMLinearKernel):
        read = kernel._get_layer_params(layer)
    for place, tensor in enumerate(read):
        yield f"read[{place}]", value_of(tensor)


def value_of(tensor: torch.Tensor | None) -> Value | None:
    """What is in a tensor; None if there is none, or an empty one."""
    if tensor is None or tensor.numel() == 0:
        return None
    content = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return Value(
        tensor.dtype, tuple(tensor.shape), tensor.stride(), content.numpy().tobytes()
    )


def run(name: str) -> Outcome:
    """Builds, loads and processes the layer of a case."""
    case = cases()[name]
    layer = case.build()
    loaded = loaded_parameters(layer)
    load(layer, loaded)
    process(layer, case)
    return outcome(layer, loaded)


def run_all(keep: Callable[[Outcome], Any] = lambda outcome: outcome) -> dict[str, Any]:
    """`run` for every case; for a process in which no other test runs.

    Args:
        keep: What to keep of each outcome; all of it by default.
    """
    with quantization_process():
        return {name: keep(run(name)) for name in cases()}


def differing_values(
    actual: dict[str, Value | None], expected: dict[str, Value | None]
) -> list[str]:
    """Names of the values that are not as expected."""
    return [name for name in expected if actual.get(name) != expected[name]]


def assert_same_outcome(again: Outcome, first: Outcome) -> None:
    """Checks that a second processing lost nothing and made what the first did."""
    assert again.losses == []
    assert again.live == first.live
    assert differing_values(again.values, first.values) == []
