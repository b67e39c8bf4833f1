# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What `benchmarks.dequant` measures: ways from checkpoint tensors to a weight.

Each way is a function of no arguments that leaves the weight in the same preallocated
rows. Those of the series first copy the packed bytes into the rows, as a loader does.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Way = Callable[[], object]

MIB = 1 << 20


class Measurement(NamedTuple):
    """Of one way.

    Attributes:
        seconds: Of the fastest run.
        peak_mib: Memory above what the tensors before the run took, in MiB.
    """

    seconds: float
    peak_mib: float


def _random_bytes(rows: int, width: int, most: int, device: str) -> torch.Tensor:
    return torch.randint(0, most, (rows, width), dtype=torch.uint8).to(device)


def _fp8_tensors(
    rows: int, cols: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A finite FP8 weight, its block scales, and rows for the result."""
    weight = _random_bytes(rows, cols, 0x7F, device).view(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-cols // 128)).to(device)
    return weight, scale, torch.ones(rows, cols, dtype=torch.bfloat16, device=device)


def stock_fp8(rows: int, cols: int, device: str) -> Way:
    """Stock's conversion of a block-FP8 weight, and the copy into the parameter."""
    from vllm.models.glm5next.common import model

    stock_model: Any = model  # Of upstream's release: the series has no such function.
    weight, scale, result = _fp8_tensors(rows, cols, device)
    return lambda: result.copy_(stock_model._dequant_fp8_block(weight, scale))


def plain_copy(rows: int, cols: int, device: str) -> Way:
    """The copy of an unquantized weight into the parameter."""
    weight = torch.ones(rows, cols, dtype=torch.bfloat16, device=device)
    result = torch.zeros_like(weight).add_(1)
    return lambda: result.copy_(weight)


def fp8_blocks(rows: int, cols: int, device: str) -> Way:
    """Block-FP8, unpacked in place."""
    from vllm.model_executor.layers.quantization.fp8_dequant import unpack_fp8

    weight, scale, result = _fp8_tensors(rows, cols, device)
    packed = result.view(weight.dtype)[:, :cols]

    def run() -> None:
        packed.copy_(weight)
        unpack_fp8(result, scale, (128, 128))

    return run


def fp8_rows(rows: int, cols: int, device: str) -> Way:
    """FP8 with a scale for each row, unpacked in place."""
    from vllm.model_executor.layers.quantization.fp8_dequant import unpack_fp8

    weight, _, result = _fp8_tensors(rows, cols, device)
    scale = torch.rand(rows, 1).to(device)
    packed = result.view(weight.dtype)[:, :cols]

    def run() -> None:
        packed.copy_(weight)
        unpack_fp8(result, scale, (1, cols))

    return run


def nvfp4(rows: int, cols: int, device: str) -> Way:
    """NVFP4, unpacked in place."""
    scale = _random_bytes(rows, cols // 16, 0x7F, device).view(torch.float8_e4m3fn)
    return _fp4(rows, cols, device, scale, torch.tensor([0.01]).to(device))


def mxfp4(rows: int, cols: int, device: str) -> Way:
    """MXFP4, unpacked in place."""
    scale = _random_bytes(rows, cols // 32, 0x90, device).view(torch.float8_e8m0fnu)
    return _fp4(rows, cols, device, scale, None)


def _fp4(
    rows: int,
    cols: int,
    device: str,
    scale: torch.Tensor,
    scale_2: torch.Tensor | None,
) -> Way:
    from vllm.model_executor.layers.quantization.nvfp4_dequant import unpack_fp4

    weight = _random_bytes(rows, cols // 2, 256, device)
    result = torch.ones(rows, cols, dtype=torch.bfloat16, device=device)
    packed = result.view(torch.uint8)[:, : cols // 2]

    def run() -> None:
        packed.copy_(weight)
        unpack_fp4(result, scale, scale_2)

    return run


def measure(
    make: Callable[[int, int, str], Way],
    rows: int,
    cols: int,
    device: str,
    repeats: int,
) -> Measurement:
    """Measures a way; in a new process, because memory that was freed hides a peak.

    On the CPU it is CPU time on one thread, which other work on the machine hardly
    changes.

    Args:
        make: Makes the way.
        rows: Of the weight.
        cols: Of the weight.
        device: "cpu" or an accelerator.
        repeats: Timed runs.
    """
    torch.set_num_threads(1)
    make(128, 256, device)()
    run = make(rows, cols, device)
    peak = _peak_of_cpu(run) if device == "cpu" else _peak_of_accelerator(run)
    seconds = min(_seconds(run, device) for _ in range(repeats))
    return Measurement(seconds, peak)


def _seconds(run: Way, device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        run()
        return time.process_time() - start
    torch.accelerator.synchronize()
    start = time.perf_counter()
    run()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def _peak_of_accelerator(run: Way) -> float:
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    run()
    torch.accelerator.synchronize()
    return (torch.accelerator.max_memory_allocated() - before) / MIB


def _peak_of_cpu(run: Way) -> float:
    """Resident memory at its highest, as Linux counts it.

    What was freed before goes back to the system first, and a write of 5 sets the
    high-water mark to what is resident.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_mib("VmRSS")
    run()
    return _status_mib("VmHWM") - before


def _status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}; expected Linux's")
