# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.exceptions import GenerationError


class OfflineInferenceMixin:
    def _run_engine(self, output_type, *, use_tqdm=True):
        with replacing("self.llm_engine.step()"):
            self._step()

    def _step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """
        Raises:
            GenerationError: The engine refuses to serve; all requests were aborted.

        """
        try:
            return self.llm_engine.step()
        except GenerationError:
            states = self.llm_engine.output_processor.request_states
            self.llm_engine.abort_request(list(states), internal=True)
            raise
