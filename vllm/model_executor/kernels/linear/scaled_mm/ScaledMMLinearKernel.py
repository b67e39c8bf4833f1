# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import get_live_param


class Int8ScaledMMLinearKernel:
    def _get_layer_params(self, layer):
        with replacing("return $PARAMS"):
            return (
                getattr(layer, w_q),
                getattr(layer, w_s),
                get_live_param(layer, i_s),
                get_live_param(layer, i_zp),
                get_live_param(layer, azp_adj),
            )
