# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import replace_parameter


class TrtLlmNvFp4ExpertsBase:
    # For methods that leave out the post-load step, which keeps them as parameters.
    kept_constants = ("g1_scale_c", "gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta")

    def process_weights_after_loading(self, layer):
        with replacing('layer.register_parameter("g1_scale_c", $$$)'):
            replace_parameter(layer, "g1_scale_c", g1_scale_c)
        with replacing('layer.register_parameter("gemm1_clamp_limit", $$$)'):
            replace_parameter(layer, "gemm1_clamp_limit", gemm1_clamp_limit)
        with replacing('layer.register_parameter("gemm1_beta", $$$)'):
            replace_parameter(layer, "gemm1_beta", gemm1_beta)
        with replacing('layer.register_parameter("gemm1_alpha", $$$)'):
            replace_parameter(layer, "gemm1_alpha", self.gemm1_alpha)
