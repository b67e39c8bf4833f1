# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from collections import defaultdict

from series import after, before, replacing


class EngineCore:
    def __init__(
        self,
        vllm_config,
        executor_class,
        log_stats,
        executor_fail_callback=None,
        include_finished_set=False,
    ):
        with after('self._weight_version = "default"'):
            # Why the workers' weights must not be used, as after a failed reload.
            self._undefined_weights: str | None = None

    def resume_scheduler(self):
        with after("self.scheduler.set_pause_state($$$)"):
            self._fail_requests_while_undefined()

    def execute_dummy_batch(self):
        with before("self.model_executor.execute_dummy_batch()"):
            if error := self.undefined_weights_error():
                # Other ranks would compute with this one's experts.
                raise RuntimeError(error.message)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        with replacing("return $X"):
            try:
                return self.model_executor.collective_rpc(method, timeout, args, kwargs)
            finally:
                self._look_for_undefined_weights(timeout)

    def _look_for_undefined_weights(self, timeout: float | None) -> None:
        """Ask the workers for their weights: any call may have loaded some, or failed
        to."""
        try:
            reasons = self.model_executor.collective_rpc(
                "find_undefined_weights", timeout
            )
            self._undefined_weights = next(filter(None, reasons), None)
        except Exception as e:
            self._undefined_weights = (
                "it is not known whether the weights are sound, since the workers did "
                f"not answer: {type(e).__name__}: {e}"
            )
        self._fail_requests_while_undefined()

    def undefined_weights_error(self) -> RequestError | None:
        """What requests get while weights are undefined.

        Returns:
            The error, or None if weights are sound, or the scheduler is paused: then
            the way of pausing decides what happens to requests.

        """
        if self._undefined_weights is None or self.is_scheduler_paused():
            return None
        return RequestError(
            code="undefined_weights",
            message=self._undefined_weights,
            retryable=True,
        )

    def _fail_requests_while_undefined(self) -> list[Request]:
        if self.undefined_weights_error() is None:
            return []
        return self.scheduler.finish_requests(None, RequestStatus.FINISHED_ERROR)


class EngineCoreProc:
    def _reject_add_while_paused(self, request):
        with replacing("not self.reject_new_requests"):
            not (self.reject_new_requests or self.undefined_weights_error())
        with replacing("RequestError($$$)"):
            self.undefined_weights_error() or RequestError(
                code="engine_paused",
                message="Generation is paused. Please retry after it resumes.",
                retryable=True,
            )

    def _fail_requests_while_undefined(self) -> list[Request]:
        error = self.undefined_weights_error()
        failed = super()._fail_requests_while_undefined()
        by_client = defaultdict[int, list[str]](list)
        for request in failed:
            by_client[request.client_index].append(request.request_id)
        for client_index, request_ids in by_client.items():
            self._send_finish_outputs_to_client(
                request_ids, client_index, FinishReason.ERROR, error
            )
        return failed
