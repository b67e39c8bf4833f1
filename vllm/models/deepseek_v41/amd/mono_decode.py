# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import triton_weight


class MonoDecodeLayer:
    def weights(self, layer):
        with replacing("e.w13_weight"):
            triton_weight(e, "w13_weight")
        with replacing("e.w2_weight"):
            triton_weight(e, "w2_weight")
