# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before


class OutputProcessor:
    def process_outputs(
        self,
        engine_core_outputs,
        engine_core_timestamp=None,
        iteration_stats=None,
        weight_version=None,
    ):
        """
        Raises:
            RetryableRequestError: Without queues, a request was refused since the
                model's weights are undefined.

        """
        with before("if error is not None and req_state.queue is not None: $$$"):
            if (
                error is not None
                and error.code == "undefined_weights"
                and req_state.queue is None
            ):
                raise error.to_exception()
