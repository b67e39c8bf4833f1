# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import refill_derived


class XPUMxFp8LinearKernel:
    def _prepare_bmm_params(self, layer, scale_kn):
        with replacing("layer.bmm_scale = $$$"):
            scale = scale_kn.reshape(k_blocks, batch, n_blocks // batch)
            refill_derived(layer, "bmm_scale", scale.permute(1, 0, 2).contiguous())
        with replacing("layer.bmm_weight = $$$"):
            w = w.reshape(batch, n_total // batch, k).permute(0, 2, 1).contiguous()
            refill_derived(layer, "bmm_weight", w)
