# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before


class InprocClient:
    def add_request(self, request):
        with before("req, request_wave = $$$"):
            if error := self.engine_core.undefined_weights_error():
                raise error.to_exception()
