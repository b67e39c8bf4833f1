# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Captured CUDA graphs, replayed after a reload, compute with the new weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.quantization.dequant_layers import (
    Item,
    Model,
    bf16,
    fp8,
    load,
    load_and_process,
    make_layer,
    nvfp4,
    random_weight,
)
from tests.tensor_parallel import tensor_parallel_group
from tests.tiny_llama import generate, in_engine, write_checkpoint

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
both_modes = pytest.mark.parametrize("mode", ["layerwise", "direct"])

ROWS, COLS, BATCH = 512, 256, 16
FORMATS = {"bf16": bf16, "fp8": fp8, "fp8-unpacked": fp8, "nvfp4-unpacked": nvfp4}


def _config(name: str) -> Any:
    """`*-unpacked` run in bfloat16; the others as their checkpoint is."""
    from vllm.model_executor.layers.quantization.checkpoint_dequant import (
        RowDequantConfig,
    )
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config

    if name.endswith("-unpacked"):
        return RowDequantConfig()
    if name == "bf16":
        return None
    return Fp8Config(True, "dynamic", weight_block_size=[128, 128])


def _items(name: str, seed: int) -> list[Item]:
    stored = FORMATS[name](random_weight(ROWS, COLS, seed=seed))
    return [item._replace(tensor=item.tensor.cuda()) for item in stored.items]


def _make(name: str) -> Any:
    return make_layer("ReplicatedLinear", COLS, ROWS, quant_config=_config(name))


def _started(name: str, seed: int) -> Any:
    layer = _make(name)
    load_and_process(layer, _items(name, seed))
    return layer


@contextmanager
def _layers_on_cuda() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config

    with (
        tensor_parallel_group(),
        set_current_vllm_config(VllmConfig()),
        torch.device("cuda"),
    ):
        yield


def _captured(layer: Any, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            layer(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, _ = layer(x)
    return graph, output


@torch.no_grad()
@both_modes
@pytest.mark.parametrize("name", FORMATS)
def test_a_replayed_layer_has_the_reloaded_weights(name: str, mode: Any):
    from vllm.model_executor.model_loader.reload import (
        finish_reload,
        record_metadata_for_reloading,
        start_reload,
    )

    config: Any = SimpleNamespace(dtype=torch.bfloat16)
    with _layers_on_cuda():
        layer = _make(name)
        model = Model(layer)
        record_metadata_for_reloading(model)
        load_and_process(layer, _items(name, seed=0))
        x = random_weight(BATCH, COLS, seed=9).bfloat16().cuda()
        graph, output = _captured(layer, x)
        before = output.clone()
        for seed in (1, 2):
            start_reload(model, mode)
            load(layer, _items(name, seed))
            finish_reload(model, config)
            # Whatever a reload freed is overwritten, as by the next request.
            torch.full((64 << 20,), float("nan"))

            graph.replay()

            expected, _ = _started(name, seed)(x)
            assert torch.equal(output, expected)
            assert not torch.equal(output, before)


def _generate_after_reloads(
    engine: "LLM", paths: list[Path], mode: str
) -> list[list[list[int]]]:
    tokens = [generate(engine)]
    for path in paths:
        arguments = {"weights_path": str(path), "mode": mode}
        engine.collective_rpc("reload_weights", kwargs=arguments)
        tokens.append(generate(engine))
    return tokens


@pytest.mark.slow_test
@both_modes
def test_an_engine_with_graphs_generates_what_a_fresh_one_does(
    mode: str, tmp_path: Path
):
    first = write_checkpoint(tmp_path / "first", seed=0)
    second = write_checkpoint(tmp_path / "second", seed=1)
    options = {"dtype": "bfloat16", "enforce_eager": False}
    job = partial(_generate_after_reloads, paths=[second, first, second], mode=mode)

    started, *reloaded = in_engine(first, job, **options)

    fresh = in_engine(second, generate, **options)
    assert reloaded == [fresh, started, fresh]
    assert started != fresh, "the two checkpoints cannot be told apart"
