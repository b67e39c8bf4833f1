# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class CutlassExpertsFp8Base:
    kept_constants = ("ab_strides1", "ab_strides2", "c_strides1", "c_strides2")


class CutlassExpertsW4A8Fp8:
    kept_constants = (
        "a_strides1",
        "a_strides2",
        "b_strides1",
        "b_strides2",
        "c_strides1",
        "c_strides2",
        "s_strides1",
        "s_strides2",
    )
