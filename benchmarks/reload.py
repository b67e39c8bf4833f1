# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a reload costs: direct, layerwise, and a plain copy of the same bytes.

    python -m benchmarks.reload

Builds a model of vLLM's own layers, BF16 and block-FP8, and reloads it from a
checkpoint in memory, one tensor at a time. Prints the time of each mode as a multiple
of one copy of the checkpoint, and the memory that it took beyond the model and the
checkpoint, at its peak and when it was done. Linux only: memory is that of the process.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.tensor_parallel import tensor_parallel_group

MIB = 2**20
Weights = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes:
        seconds: Wall-clock time.
        peak: Bytes beyond those held before, at most.
        kept: Bytes beyond those held before, at the end.
    """

    seconds: float
    peak: int
    kept: int


def build_model(layers: int, width: int) -> torch.nn.Module:
    """Layers of a fused BF16 and a fused block-FP8 projection, as vLLM has them."""
    from vllm.model_executor.kernels.linear.scaled_mm.triton import (
        TritonFp8BlockScaledMMKernel,
    )
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear
    from vllm.model_executor.layers.quantization import fp8

    def choose_kernel(*args: Any, **kwargs: Any) -> TritonFp8BlockScaledMMKernel:
        # No kernel of vLLM's runs block-FP8 here, and none has to.
        return object.__new__(TritonFp8BlockScaledMMKernel)

    config = fp8.Fp8Config(
        is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128]
    )
    fused: dict[str, Any] = dict(bias=False, params_dtype=torch.bfloat16)
    with mock.patch.object(fp8, "init_fp8_linear_kernel", choose_kernel):
        return torch.nn.ModuleDict(
            {
                f"{index}_{name}": MergedColumnParallelLinear(
                    width, [width] * 2, quant_config=quant_config, prefix=name, **fused
                )
                for index in range(layers)
                for name, quant_config in (("bf16", None), ("fp8", config))
            }
        )


def make_checkpoint(model: torch.nn.Module) -> Weights:
    """Random tensors for each shard of each parameter, in an order of their own."""
    generator = torch.Generator().manual_seed(0)
    weights = []
    for name, param in model.named_parameters():
        for shard in range(2):
            shape = (param.shape[0] // 2, *param.shape[1:])
            tensor = torch.empty(shape, dtype=param.dtype)
            raw = tensor.view(torch.uint8)
            # Small bytes: finite in every format.
            raw.random_(0, 64, generator=generator)
            weights.append((f"{name}.{shard}", tensor))
    return weights


def load(model: torch.nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Loads tensors by the parameters' own weight loaders."""
    for name, tensor in weights:
        param_name, _, shard = name.rpartition(".")
        param: Any = dict(model.named_parameters())[param_name]
        param.weight_loader(param, tensor, int(shard))


def cold_start(layers: int, width: int) -> tuple[torch.nn.Module, Weights]:
    """A model that is loaded and processed, and a checkpoint for it."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.reload.first_load import observe_first_load
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    model = build_model(layers, width)
    weights = make_checkpoint(model)
    record_metadata_for_reloading(model)
    observe_first_load(model)
    load(model, weights)
    config: Any = SimpleNamespace(
        dtype=torch.bfloat16,
        quantization=None,
        word_embeddings_untied_by_checkpoint=False,
    )
    process_weights_after_loading(model, config, torch.device("cpu"))
    return model, weights


def measure(run: Callable[[], None]) -> Cost:
    """Runs something and measures what it takes."""
    gc.collect()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    peak = _memory("VmHWM")
    gc.collect()
    return Cost(seconds, peak - before, _memory("VmRSS") - before)


def _memory(field: str) -> int:
    """Bytes of resident memory of this process: now, or at most since the reset."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def reload(model: torch.nn.Module, weights: Weights, mode: Any) -> None:
    """Reloads a model in a mode."""
    from vllm.model_executor.model_loader.reload import finish_reload, start_reload

    config: Any = SimpleNamespace(dtype=torch.bfloat16)
    start_reload(model, mode)
    load(model, weights)
    finish_reload(model, config)


def copy(weights: Weights, targets: list[torch.Tensor]) -> None:
    """Copies a checkpoint once."""
    for (_, tensor), target in zip(weights, targets, strict=True):
        target.copy_(tensor)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        from vllm.config import VllmConfig, set_current_vllm_config

        vllm_config: Any = VllmConfig()
        vllm_config.model_config = SimpleNamespace(dtype=torch.bfloat16)
        with set_current_vllm_config(vllm_config):
            print(_table(options.layers, options.width, options.repeat))


def _table(layers: int, width: int, repeat: int) -> str:
    model, weights = cold_start(layers, width)
    targets = [torch.zeros_like(tensor) for _, tensor in weights]
    runs: dict[str, Callable[[], None]] = {
        "plain copy": lambda: copy(weights, targets),
        "direct": lambda: reload(model, weights, "direct"),
        "layerwise": lambda: reload(model, weights, "layerwise"),
    }
    costs = {
        name: [measure(run) for _ in range(repeat + 1)][1:]
        for name, run in runs.items()
    }
    total = sum(tensor.nbytes for _, tensor in weights)
    largest = max(tensor.nbytes for _, tensor in weights)
    unit = min(cost.seconds for cost in costs["plain copy"])
    lines = [
        f"{total / 2**30:.2f} GiB in {len(weights)} tensors, the largest of "
        f"{largest / MIB:.0f} MiB; the best of {repeat} runs\n",
        "| | time / copy | peak MiB | kept MiB |",
        "|---|---|---|---|",
    ]
    for name, taken in costs.items():
        seconds = min(cost.seconds for cost in taken)
        peak = max(cost.peak for cost in taken) / MIB
        kept = max(cost.kept for cost in taken) / MIB
        lines.append(f"| {name} | {seconds / unit:.2f} | {peak:.1f} | {kept:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
