# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the engine core does while its workers' weights are undefined."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import FinishReason
from vllm.v1.engine.core import EngineCoreProc

REASON = "the weights are undefined"


class _Workers:
    """Two workers; calls named `fail` raise, and leave the second one undefined."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.answers = True

    def collective_rpc(self, method: str, timeout=None, args=(), kwargs=None) -> list:
        if method == "find_undefined_weights":
            if not self.answers:
                raise TimeoutError
            return [None, self.reason]
        self.reason = REASON if method == "fail" else None
        if method == "fail":
            raise ZeroDivisionError
        return [method, method]


class _Scheduler:
    """Holds requests, without running any."""

    def __init__(self, requests: list[Any]) -> None:
        self.pause_state = PauseState.UNPAUSED
        self.requests = {request.request_id: request for request in requests}

    def set_pause_state(self, state: PauseState) -> None:
        self.pause_state = state

    def has_request(self, request_id: str) -> bool:
        return request_id in self.requests

    def finish_requests(self, request_ids: None, status: Any) -> list[Any]:
        finished, self.requests = list(self.requests.values()), {}
        return finished


def _request(request_id: str, client_index: int = 0) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        client_index=client_index,
        abort_immediately=False,
        kv_transfer_params=None,
    )


def _engine(*requests: Any) -> Any:
    engine: Any = EngineCoreProc.__new__(EngineCoreProc)
    engine.model_executor = _Workers()
    engine.scheduler = _Scheduler(list(requests))
    engine.output_queue = queue.Queue()
    engine.reject_new_requests = False
    engine._undefined_weights = None
    return engine


def _fail(engine: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        engine.collective_rpc("fail")


def _errors(engine: Any) -> dict[tuple[int, str], str]:
    """Message for each client and request that was answered with an error."""
    errors = {}
    while not engine.output_queue.empty():
        client_index, outputs = engine.output_queue.get()
        for output in outputs.outputs:
            assert output.finish_reason == FinishReason.ERROR
            assert output.error.retryable
            errors[client_index, output.request_id] = output.error.message
    return errors


def test_sound_weights_serve():
    engine = _engine(_request("running"))
    assert engine.collective_rpc("anything") == ["anything", "anything"]
    assert engine.undefined_weights_error() is None
    assert not engine._reject_add_while_paused(_request("new"))
    assert not _errors(engine)


def test_new_requests_get_an_error_with_the_reason():
    engine = _engine()
    _fail(engine)
    assert engine._reject_add_while_paused(_request("new", client_index=1))
    assert _errors(engine) == {(1, "new"): REASON}


def test_requests_under_way_get_the_error_too():
    engine = _engine(_request("a"), _request("b", client_index=1))
    _fail(engine)
    assert _errors(engine) == {(0, "a"): REASON, (1, "b"): REASON}


def test_a_paused_engine_keeps_its_requests_until_it_resumes():
    engine = _engine(_request("kept"))
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    _fail(engine)
    assert not engine._reject_add_while_paused(_request("new"))
    assert not _errors(engine)

    engine.resume_scheduler()
    assert _errors(engine) == {(0, "kept"): REASON}


def test_a_paused_engine_serves_its_requests_after_a_complete_reload():
    engine = _engine(_request("kept"))
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    _fail(engine)
    engine.collective_rpc("reload")
    engine.resume_scheduler()
    assert not _errors(engine)
    assert engine.scheduler.has_request("kept")


def test_a_successful_call_that_mends_the_weights_ends_the_refusal():
    engine = _engine()
    _fail(engine)
    engine.collective_rpc("reload")
    assert not engine._reject_add_while_paused(_request("new"))


def test_workers_that_do_not_answer_count_as_undefined():
    engine = _engine()
    engine.model_executor.answers = False
    engine.collective_rpc("anything")
    assert "not known" in engine.undefined_weights_error().message


def test_no_dummy_batch_runs_for_other_ranks():
    engine = _engine()
    _fail(engine)
    with pytest.raises(RuntimeError, match=REASON):
        engine.execute_dummy_batch()
