# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""vLLM's process groups on the CPU: in this process alone, or in two new ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

import torch

from tests.current_platform import use_cuda_like_cpu_platform

P = ParamSpec("P")
T = TypeVar("T")

TP_SIZE = 2
"""Number of processes that `run_tp2` starts."""


@contextmanager
def tensor_parallel_group(
    rank: int = 0, size: int = 1, folder: Path | None = None
) -> Iterator[None]:
    """Has vLLM's process groups, over gloo, for as long as the context lasts.

    Args:
        rank: Of this process.
        size: Number of processes, all of them tensor parallel.
        folder: Empty folder in which the processes meet. A temporary one will do for
            a single process, and is the default.

    Raises:
        RuntimeError: if this process has process groups already.
    """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    if torch.distributed.is_initialized():
        raise RuntimeError(
            "this process has process groups; expected none: leave their context, or "
            "use them"
        )
    with TemporaryDirectory() as own_folder:
        store = f"file://{folder or own_folder}/rendezvous"
        try:
            with set_current_vllm_config(VllmConfig()):
                init_distributed_environment(size, rank, store, rank, backend="gloo")
                initialize_model_parallel(size)
            yield
        finally:
            destroy_model_parallel()
            destroy_distributed_environment()


def run_tp2(job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    """Runs a job in two new processes that are one tensor-parallel group.

    Args:
        job: A function that can be pickled, as can its arguments and its result.
        *args: Of the job.
        **kwargs: Of the job.

    Returns:
        What the job returned, by rank.

    Raises:
        torch.multiprocessing.ProcessRaisedException: if the job raised; the message
            has the rank and its traceback. The other process is ended.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        torch.multiprocessing.spawn(_run_rank, (job, args, kwargs, folder), TP_SIZE)
        files = [folder / f"{rank}.pt" for rank in range(TP_SIZE)]
        return [torch.load(file, weights_only=False) for file in files]


def _run_rank(
    rank: int,
    job: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    folder: Path,
) -> None:
    torch.set_num_threads(1)
    with use_cuda_like_cpu_platform(), tensor_parallel_group(rank, TP_SIZE, folder):
        torch.save(job(*args, **kwargs), folder / f"{rank}.pt")
