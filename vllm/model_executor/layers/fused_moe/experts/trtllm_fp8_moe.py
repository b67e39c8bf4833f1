# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class TrtLlmFp8ExpertsBase:
    kept_constants = ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")


class TrtLlmFp8ExpertsMonolithic:
    kept_constants = ("_g1_alphas", "_g2_alphas", "_g1_scale_c")
