# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import get_live_param


class MPLinearKernel:
    def _get_weight_params(self, layer):
        with replacing('getattr(layer, self.w_zp_name or "", None)'):
            get_live_param(layer, self.w_zp_name or "")
