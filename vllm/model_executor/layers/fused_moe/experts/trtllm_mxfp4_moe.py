# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class TrtLlmMxfp4ExpertsBase:
    kept_constants = ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")
