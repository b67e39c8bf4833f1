# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reloading weights into a real engine, on CPU."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.tiny_llama import generate, in_engine, write_checkpoint

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.slow_test

Tokens = list[list[int]]


class _Checkpoints(NamedTuple):
    first: Path
    second: Path
    broken: Path
    """The second, with a tensor of the last layer in a wrong shape."""


class _DirectReloads(NamedTuple):
    before: Tokens
    reloaded: list[Tokens]
    failure: str
    refusal: str
    kernel_format: str
    recovered: Tokens


def _reload(engine: "LLM", path: Path, **kwargs) -> None:
    engine.collective_rpc(
        "reload_weights", kwargs={"weights_path": str(path), **kwargs}
    )


def _error(call) -> str:
    with pytest.raises(Exception) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def _generate_reload_generate(engine: "LLM", path: Path) -> list[Tokens]:
    before = generate(engine)
    _reload(engine, path)
    return [before, generate(engine)]


def _reload_directly(engine: "LLM", checkpoints: _Checkpoints) -> _DirectReloads:
    first, second, broken = checkpoints
    before = generate(engine)
    reloaded = []
    for path in (second, first, second):
        _reload(engine, path, mode="direct")
        reloaded.append(generate(engine))
    kernel_format = partial(
        _reload, engine, first, mode="direct", is_checkpoint_format=False
    )
    kernel_format_error = _error(kernel_format)
    assert generate(engine) == reloaded[-1], "the refused reload wrote something"
    _reload(engine, first, mode="direct")
    failure = _error(partial(_reload, engine, broken, mode="direct"))
    refusal = _error(partial(generate, engine))
    _reload(engine, second, mode="direct")
    return _DirectReloads(
        before, reloaded, failure, refusal, kernel_format_error, generate(engine)
    )


def _break(source: Path, folder: Path) -> Path:
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> _Checkpoints:
    folder = tmp_path_factory.mktemp("llama")
    second = write_checkpoint(folder / "second", seed=1)
    return _Checkpoints(
        write_checkpoint(folder / "first", seed=0),
        second,
        _break(second, folder / "broken"),
    )


@pytest.fixture(scope="module")
def fresh(checkpoints: _Checkpoints) -> Tokens:
    """What an engine that was started on the second checkpoint generates."""
    return in_engine(checkpoints.second, generate)


@pytest.fixture(scope="module")
def direct(checkpoints: _Checkpoints) -> _DirectReloads:
    """What one engine does that is reloaded directly, again and again."""
    job = partial(_reload_directly, checkpoints=checkpoints)
    return in_engine(checkpoints.first, job)


def test_reloaded_engine_generates_the_tokens_of_a_fresh_one(checkpoints, fresh):
    job = partial(_generate_reload_generate, path=checkpoints.second)
    before, after = in_engine(checkpoints.first, job)

    assert after == fresh
    assert before != after, "the two checkpoints cannot be told apart"


def test_three_direct_reloads_in_a_row_give_the_tokens_of_a_fresh_engine(direct, fresh):
    assert direct.reloaded == [fresh, direct.before, fresh]
    assert direct.before != fresh, "the two checkpoints cannot be told apart"


def test_an_engine_refuses_to_serve_after_a_failed_reload(direct):
    assert "Worker failed" in direct.failure
    assert "undefined" in direct.refusal


def test_a_complete_reload_after_a_failed_one_restores_service(direct, fresh):
    assert direct.recovered == fresh


def test_a_direct_reload_of_weights_in_kernel_format_is_refused(direct):
    assert "is_checkpoint_format is False" in direct.kernel_format
