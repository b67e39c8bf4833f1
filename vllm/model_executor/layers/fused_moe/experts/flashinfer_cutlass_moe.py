# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class FlashInferExperts:
    kept_constants = (
        "gemm1_clamp_limit",
        "gemm1_alpha",
        "gemm1_beta",
        "fake_input_scale",
    )
