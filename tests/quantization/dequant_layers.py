# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Real linear layers whose checkpoint is quantized, and what to load into them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.quantized_weights import (
    E2M1_VALUES,
    dequantize_fp8,
    dequantize_nvfp4,
    quantize_fp8,
    quantize_nvfp4,
    unpack_e2m1,
)
from tests.tensor_parallel import tensor_parallel_group

COLS = 320
"""Two and a half blocks of FP8, 20 groups of NVFP4."""
SHARDS = (192, 576)
"""Rows of two shards, of one and a half and of four and a half blocks."""


class Item(NamedTuple):
    """A checkpoint tensor: the parameter it belongs to, the tensor, its shard."""

    name: str
    tensor: torch.Tensor
    shard: int | str | None = None


class Stored(NamedTuple):
    """A weight as a checkpoint stores it, and what it stands for."""

    items: list[Item]
    weight: torch.Tensor


class Model(torch.nn.Module):
    """A model of one layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer


@contextmanager
def layers_context() -> Iterator[None]:
    """Where layers can be made, loaded and processed."""
    from vllm.config import VllmConfig, set_current_vllm_config

    with (
        use_cuda_like_cpu_platform(),
        tensor_parallel_group(),
        set_current_vllm_config(VllmConfig()),
    ):
        yield


def random_weight(rows: int, cols: int = COLS, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.rand(rows, 1, generator=generator) * 8
    return torch.randn(rows, cols, generator=generator) * magnitudes


def fp8(
    weight: torch.Tensor,
    shard: int | str | None = None,
    scale_dtype: torch.dtype = torch.float32,
) -> Stored:
    packed, scale = quantize_fp8(weight, scale_dtype)
    items = [
        Item("weight", packed, shard),
        Item("weight_scale_inv", scale, shard),
    ]
    return Stored(items, dequantize_fp8(packed, scale))


def nvfp4(weight: torch.Tensor, shard: int | str | None = None) -> Stored:
    packed, scale, scale_2 = quantize_nvfp4(weight)
    items = [
        Item("weight", packed, shard),
        Item("weight_scale", scale, shard),
        Item("weight_scale_2", scale_2, shard),
    ]
    return Stored(items, dequantize_nvfp4(packed, scale, scale_2))


def mxfp4(weight: torch.Tensor, shard: int | str | None = None) -> Stored:
    """Any codes and exponents: what they stand for is all that matters."""
    packed = quantize_nvfp4(weight)[0]
    generator = torch.Generator().manual_seed(len(weight))
    shape = (len(weight), weight.shape[1] // 32)
    exponents = torch.randint(100, 140, shape, generator=generator, dtype=torch.uint8)
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    scale = torch.exp2(exponents.float() - 127).repeat_interleave(32, dim=1)
    items = [Item("weight", packed, shard), Item("weight_scale", exponents, shard)]
    return Stored(items, (values[unpack_e2m1(packed).long()] * scale).bfloat16())


def compressed(weight: torch.Tensor, shard: int | str | None = None) -> Stored:
    """NVFP4 of compressed-tensors, with the reciprocal of the global scale."""
    packed, scale, scale_2 = quantize_nvfp4(weight)
    global_scale = scale_2.reciprocal().reshape(1)
    items = [
        Item("weight", packed, shard),
        Item("weight_scale", scale, shard),
        Item("weight_global_scale", global_scale, shard),
    ]
    return Stored(items, dequantize_nvfp4(packed, scale, global_scale.reciprocal()))


def bf16(weight: torch.Tensor, shard: int | str | None = None) -> Stored:
    return Stored([Item("weight", weight.bfloat16(), shard)], weight.bfloat16())


Format = Callable[..., Stored]

FORMATS: dict[str, tuple[Format, Format]] = {
    f"{first.__name__}-{second.__name__}": (first, second)
    for first in (bf16, fp8, nvfp4)
    for second in (bf16, fp8, nvfp4)
}
"""Formats of two shards."""


def fused(formats: Sequence[Format], seed: int = 0) -> Stored:
    """Two shards, each in its own format."""
    parts = [
        make(random_weight(rows, seed=seed + shard), shard)
        for shard, (make, rows) in enumerate(zip(formats, SHARDS, strict=True))
    ]
    items = [item for part in parts for item in part.items]
    return Stored(items, torch.cat([part.weight for part in parts]))


def make_layer(kind: str, *sizes: Any, **kwargs: Any) -> Any:
    """A linear layer of a class of `vllm.model_executor.layers.linear`."""
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.quantization.checkpoint_dequant import (
        RowDequantConfig,
    )

    options: dict[str, Any] = {
        "bias": False,
        "params_dtype": torch.bfloat16,
        "quant_config": RowDequantConfig(),
        "prefix": "layers.0.proj",
    }
    return getattr(linear, kind)(*sizes, **(options | kwargs))


def make_fused(**kwargs: Any) -> Any:
    """A layer of the two `SHARDS`, on every rank in full, as `fused_qkv_a_proj` is."""
    return make_layer(
        "MergedColumnParallelLinear", COLS, list(SHARDS), disable_tp=True, **kwargs
    )


def load(layer: torch.nn.Module, items: Iterable[Item]) -> None:
    """Loads by the parameters' own loaders.

    What was sent is overwritten afterwards, as transports do that reuse their buffers.
    """
    for item in items:
        param: Any = dict(layer.named_parameters())[item.name]
        sent = item.tensor.clone()
        shard = () if item.shard is None else (item.shard,)
        param.weight_loader(param, sent, *shard)
        sent.untyped_storage().fill_(0xFF)  # type: ignore[attr-defined]


def process(layer: Any) -> None:
    layer.quant_method.process_weights_after_loading(layer)
    layer.update_param_tp_status()


def load_and_process(layer: Any, items: Iterable[Item]) -> None:
    load(layer, items)
    process(layer)


def reload_in_mode(
    model: torch.nn.Module, items: Iterable[Item], mode: Literal["direct", "layerwise"]
) -> None:
    """Reloads a model of one layer that was made by `make_model`."""
    from vllm.model_executor.model_loader.reload import finish_reload, start_reload

    start_reload(model, mode)
    load(model.layer, items)
    config: Any = SimpleNamespace(dtype=torch.bfloat16)
    finish_reload(model, config)


def make_model(layer: torch.nn.Module, items: Iterable[Item]) -> Any:
    """A model of one layer that has loaded this."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    model = Model(layer)
    record_metadata_for_reloading(model)
    load_and_process(model.layer, items)
    return model


def same_bytes(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and bytes are equal."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    bytes_of = [t.detach().contiguous().view(torch.uint8) for t in (actual, expected)]
    return torch.equal(*bytes_of)


def load_dummy_weights(model: torch.nn.Module) -> None:
    """Loads as `load_format=dummy` does."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(model, None)


def save_and_load_sharded_state(
    saved: torch.nn.Module, model: torch.nn.Module, folder: Path
) -> None:
    """Loads what `load_format=sharded_state` saved of another model."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.sharded_state_loader import (
        ShardedStateLoader,
    )

    ShardedStateLoader.save_model(saved, str(folder))
    loader = ShardedStateLoader(LoadConfig(load_format="sharded_state"))
    loader.load_weights(model, SimpleNamespace(model=str(folder), model_weights=None))
