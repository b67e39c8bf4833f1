# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class BeamForCausalLM:
    # The hook compiles kernels, and derives nothing from the weights.
    reload_safe_post_load = True
