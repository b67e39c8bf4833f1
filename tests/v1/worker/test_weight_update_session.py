# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A worker's weight update sessions: how they end, and what the model is then."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.distributed.toy_transfer import (
    MODEL_CONFIG,
    LocalEngine,
    ToyModel,
    bad_weights,
    loaded_toy_model,
    make_engine,
    toy_weights,
    values,
)
from vllm.config import VllmConfig
from vllm.v1.worker.gpu_worker import Worker

STEP = SimpleNamespace(total_num_scheduled_tokens=1)


class _Runner:
    """As much of a model runner as sessions need."""

    def __init__(self) -> None:
        self.model = loaded_toy_model(1.0)
        self.draft_model = loaded_toy_model(1.0)
        self.steps = 0

    def get_model(self) -> ToyModel:
        return self.model

    def get_draft_model(self) -> ToyModel:
        return self.draft_model

    def reset_lora_state(self) -> None:
        pass

    def execute_model(self, *args: Any) -> None:
        self.steps += 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    # As vLLM's CPU model runner does: there is no accelerator to wait for.
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *args: None)
    worker: Any = Worker.__new__(Worker)
    worker.vllm_config = VllmConfig()
    worker.model_runner = _Runner()
    worker.speculative_config = SimpleNamespace(draft_model_config=MODEL_CONFIG)
    worker.weight_transfer_engine = make_engine(
        LocalEngine, worker.model_runner.model, backend="local", reload_mode="direct"
    )
    worker._weight_update_active = False
    worker._weight_update_is_draft = False
    worker._pp_send_work = []
    worker.profiler = None
    worker.use_v2_model_runner = False
    return worker


@pytest.fixture(params=["target", "draft"])
def target(request: pytest.FixtureRequest) -> str:
    return request.param


def _start(worker: Any, target: str) -> None:
    if target == "draft":
        worker.start_draft_weight_update()
    else:
        worker.start_weight_update()


def _model(worker: Any, target: str) -> ToyModel:
    runner = worker.model_runner
    return runner.draft_model if target == "draft" else runner.model


def _send(worker: Any, weights: dict[str, torch.Tensor]) -> None:
    worker.update_weights({"weights": weights})


def _update(worker: Any, target: str, value: float) -> None:
    _start(worker, target)
    _send(worker, toy_weights(value))
    worker.finish_weight_update()


def _execute(worker: Any) -> None:
    # Pipeline parallelism is not set up: a first rank that receives nothing.
    with pytest.MonkeyPatch.context() as patch:
        group = SimpleNamespace(is_first_rank=True)
        patch.setattr("vllm.v1.worker.gpu_worker.get_pp_group", lambda: group)
        worker.execute_model(STEP)


def _is_closed(worker: Any) -> bool:
    engine = worker.weight_transfer_engine
    return (
        not worker._weight_update_active and engine.model is worker.model_runner.model
    )


def test_an_update_reaches_the_chosen_model_only(worker, target):
    _update(worker, target, 2.0)

    other = "target" if target == "draft" else "draft"
    assert values(_model(worker, target)) == {2.0}
    assert values(_model(worker, other)) == {1.0}
    assert _is_closed(worker)


def test_a_start_that_is_refused_closes_the_session_and_leaves_no_mark(worker, target):
    model: Any = _model(worker, target)
    model.process_weights_after_loading = lambda: None

    with pytest.raises(RuntimeError, match="reload_safe_post_load"):
        _start(worker, target)

    assert _is_closed(worker)
    assert worker.find_undefined_weights() is None
    assert values(_model(worker, target)) == {1.0}


def test_an_error_while_receiving_closes_the_session_and_marks_the_model(
    worker, target
):
    _start(worker, target)
    with pytest.raises(AssertionError):
        _send(worker, bad_weights())

    assert _is_closed(worker)
    assert "undefined" in worker.find_undefined_weights()


def test_an_error_in_finish_closes_the_session(worker, target):
    def fail() -> None:
        raise ZeroDivisionError

    _start(worker, target)
    _send(worker, toy_weights(2.0))
    model = _model(worker, target)
    model.reload_safe_post_load = True  # type: ignore[assignment]
    model.process_weights_after_loading = fail  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        worker.finish_weight_update()

    assert _is_closed(worker)
    assert "undefined" in worker.find_undefined_weights()


def test_a_complete_update_after_a_failed_one_makes_the_model_sound(worker, target):
    _start(worker, target)
    with pytest.raises(AssertionError):
        _send(worker, bad_weights())

    _update(worker, target, 3.0)

    assert worker.find_undefined_weights() is None
    assert values(_model(worker, target)) == {3.0}


def test_after_a_failure_updates_and_finish_need_a_new_session(worker, target):
    _start(worker, target)
    with pytest.raises(AssertionError):
        _send(worker, bad_weights())

    with pytest.raises(RuntimeError, match="start_weight_update"):
        _send(worker, toy_weights(3.0))
    with pytest.raises(RuntimeError, match="start_weight_update"):
        worker.finish_weight_update()


def test_an_incomplete_update_after_a_failed_one_is_refused_by_name(worker, target):
    _start(worker, target)
    with pytest.raises(AssertionError):
        _send(worker, bad_weights())

    _start(worker, target)
    weights = toy_weights(3.0)
    del weights["first.bias"]
    _send(worker, weights)
    with pytest.raises(RuntimeError, match="first.* misses bias"):
        worker.finish_weight_update()

    assert _is_closed(worker)
    assert "undefined" in worker.find_undefined_weights()


def test_abort_closes_the_session(worker, target):
    _start(worker, target)
    _send(worker, {"first.bias": torch.zeros(4)})
    worker.abort_weight_update()

    assert _is_closed(worker)
    assert "undefined" in worker.find_undefined_weights()
    _update(worker, target, 4.0)
    assert worker.find_undefined_weights() is None


def test_abort_before_anything_was_written_leaves_the_model_sound(worker, target):
    _start(worker, target)
    worker.abort_weight_update()

    assert worker.find_undefined_weights() is None
    assert values(_model(worker, target)) == {1.0}


def test_abort_without_a_session_is_a_no_op(worker):
    worker.abort_weight_update()
    assert _is_closed(worker)


def test_a_worker_with_undefined_weights_refuses_to_run_the_model(worker, target):
    _start(worker, target)
    with pytest.raises(AssertionError):
        _send(worker, bad_weights())

    with pytest.raises(RuntimeError, match="undefined"):
        _execute(worker)
    assert worker.model_runner.steps == 0

    _update(worker, target, 3.0)
    _execute(worker)
    assert worker.model_runner.steps == 1
