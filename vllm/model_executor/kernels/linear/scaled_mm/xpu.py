# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import refill_derived


class XPUFp8BlockScaledMMKernel:
    def _prepare_bmm_params(self, layer, scale_kn):
        with replacing("layer.bmm_scale = $$$"):
            scale = scale_kn.reshape(k_blocks, batch, n_blocks // batch)
            refill_derived(layer, "bmm_scale", scale.permute(1, 0, 2).contiguous())
