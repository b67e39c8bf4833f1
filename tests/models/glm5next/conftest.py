# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Fixtures for tests on the tiny GLM-5.x."""

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.glm5_config import hf_config
from tests.glm5_tiny import (
    TinyGlm5,
    WeightFormat,
    make_checkpoint,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)
from tests.models.glm5next.format_matrix import ROWS


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """On tensors this small, threads spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def glm5_process() -> Iterator[None]:
    """The platform and the process groups that building and loading need."""
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        import vllm.model_executor.model_loader
        import vllm.models.glm5next  # noqa: F401

        # The default loader collects garbage twice a load; spare it what is imported.
        gc.freeze()
        yield
        gc.unfreeze()


@pytest.fixture(scope="session")
def checkpoint_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[TinyGlm5], Path]:
    """Gives a folder with the checkpoint of seed 0 of a tiny model, written once."""

    @cache
    def write(spec: TinyGlm5) -> Path:
        folder = tmp_path_factory.mktemp(f"{spec.architecture}-{spec.weight_format}")
        return write_checkpoint(folder, spec, make_checkpoint(spec).tensors)

    return write


@pytest.fixture(scope="session")
def config_folders(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[WeightFormat, Path]:
    """A config.json of each format that a row of the matrix declares."""
    folders = {}
    for declared in {row.declared for row in ROWS.values()}:
        folders[declared] = tmp_path_factory.mktemp(declared.value)
        hf_config(TinyGlm5(weight_format=declared)).save_pretrained(folders[declared])
    return folders
