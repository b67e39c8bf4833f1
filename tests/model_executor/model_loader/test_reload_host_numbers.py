# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Numbers that graphs hold are not changed behind their backs."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import regex as re
import torch
from torch import nn

import vllm
from tests.quantization.keep_param_layers import make_attention
from vllm.model_executor.model_loader.reload import (
    finish_reload,
    host_numbers,
    record_metadata_for_reloading,
    start_reload,
)
from vllm.model_executor.model_loader.reload.undefined_weights import undefined_layers
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

CONFIG: Any = SimpleNamespace(
    dtype=torch.float32, quantization=None, word_embeddings_untied_by_checkpoint=False
)
both_modes = pytest.mark.parametrize("mode", ["layerwise", "direct"])


class Model(nn.Module):
    """One attention layer, and one weight."""

    def __init__(self, backend: str, impl: str) -> None:
        super().__init__()
        self.attention = make_attention("kv_cache.BaseKVCacheMethod", "fp8_e4m3")
        kind = getattr(import_module(f"vllm.v1.attention.backends.{backend}"), impl)
        self.attention.impl = kind.__new__(kind)
        self.weight = nn.Parameter(torch.zeros(2))

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            param = parameters[name]
            getattr(param, "weight_loader", default_weight_loader)(param, weight)


def _weights(k_scale: float) -> list[tuple[str, torch.Tensor]]:
    scales = [("k", k_scale), ("v", 0.5), ("q", 1.0), ("prob", 1.0)]
    named = [(f"attention.{s}_scale", torch.tensor(v)) for s, v in scales]
    return [*named, ("weight", torch.ones(2))]


def _started(backend: str, impl: str, k_scale: float) -> Model:
    model = Model(backend, impl)
    record_metadata_for_reloading(model)
    model.load_weights(_weights(k_scale))
    process_weights_after_loading(model, CONFIG, torch.device("cpu"))
    return model


def _reload(model: Model, mode: Any, k_scale: float) -> None:
    start_reload(model, mode)
    model.load_weights(_weights(k_scale))
    finish_reload(model, CONFIG)


@both_modes
def test_a_scale_that_a_backend_holds_may_come_again(mode: Any):
    model = _started("flashinfer", "FlashInferImpl", 0.25)

    _reload(model, mode, 0.25)

    assert model.attention._k_scale_float == 0.25
    assert not undefined_layers(model)


@both_modes
def test_another_scale_is_refused_each_time_until_the_former_one_comes(mode: Any):
    model = _started("flashinfer", "FlashInferImpl", 0.25)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"attention\._k_scale_float is 0\.75"):
            _reload(model, mode, 0.75)
        assert undefined_layers(model)
        assert model.attention._k_scale_float == 0.25
    _reload(model, mode, 0.25)

    assert not undefined_layers(model)


@both_modes
def test_a_backend_that_reads_tensors_takes_another_scale(mode: Any):
    model = _started("triton_attn", "TritonAttentionImpl", 0.25)

    _reload(model, mode, 0.75)

    assert model.attention._k_scale_float == 0.75
    assert model.attention._k_scale == 0.75


@both_modes
def test_numbers_of_kernels_are_compared(mode: Any):
    model = _started("triton_attn", "TritonAttentionImpl", 0.25)
    model.flint_global_scale = 2.0

    start_reload(model, mode)
    model.load_weights(_weights(0.25))
    model.flint_global_scale = 3.0  # As the kernel's processing does.

    with pytest.raises(RuntimeError, match=r"flint_global_scale is 3\.0; it was 2\.0"):
        finish_reload(model, CONFIG)
    assert model.flint_global_scale == 2.0


@pytest.mark.parametrize(("startup", "changed"), [(1.0, True), (0.5, False)])
def test_what_is_only_compared_with_one_may_change_otherwise(
    startup: float, changed: bool
):
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention

    layer: Any = MLAAttention.__new__(MLAAttention)
    nn.Module.__init__(layer)
    layer._k_scale_float = startup
    numbers = host_numbers.HostNumbers(layer)

    layer._k_scale_float = 0.75

    if changed:
        with pytest.raises(RuntimeError, match="_k_scale_float is 0.75; it was 1.0"):
            numbers.require_unchanged()
    else:
        numbers.require_unchanged()


def test_no_reader_of_the_floats_is_unlisted():
    known = {
        # Where they are set.
        "vllm.model_executor.layers.attention.attention",
        "vllm.model_executor.layers.quantization.kv_cache",
        "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
        "vllm.v1.attention.backend",
        # A draft's are set to those of its target.
        "vllm.v1.worker.gpu.spec_decode.gemma4.speculator",
        # Reads them anew for each batch; its platform captures no graphs.
        "vllm.v1.attention.backends.cpu_attn",
        # Serves one value only, and raises on others.
        "vllm.v1.attention.backends.mla.cutlass_mla",
        # Found by what the model has built.
        "vllm.models.kimi_k3.nvidia.specialized_decode.cutedsl.mla.prepared",
        "vllm.model_executor.model_loader.reload.host_numbers",
    }
    root = Path(vllm.__file__).parent
    readers = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for path in root.rglob("*.py")
        if ".series" not in path.parts  # The originals of an applied series.
        and re.search(r"_(q|k|v|prob)_scale_(float|cpu)\b", path.read_text())
    }
    listed = (
        *host_numbers.READS_ATTENTION_SCALES,
        *host_numbers.ASKS_WHETHER_SCALES_ARE_ONE,
    )

    unlisted = {
        reader
        for reader in readers - known
        if not f"{reader}.".startswith(tuple(f"{name}." for name in listed))
    }

    assert unlisted == set()
    assert known <= readers
