# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reloading weights into a real engine, on CPU."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tiny_llama import generate, in_engine, write_checkpoint

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.slow_test


def _generate_reload_generate(engine: "LLM", path: str) -> list[list[list[int]]]:
    before = generate(engine)
    engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
    return [before, generate(engine)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("llama")
    return (
        write_checkpoint(folder / "first", seed=0),
        write_checkpoint(folder / "second", seed=1),
    )


def test_reloaded_engine_generates_the_tokens_of_a_fresh_one(checkpoints):
    first, second = checkpoints
    job = partial(_generate_reload_generate, path=str(second))

    before, after = in_engine(first, job)
    fresh = in_engine(second, generate)

    assert after == fresh
    assert before != after, "the two checkpoints cannot be told apart"
