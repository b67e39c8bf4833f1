# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class BeamForCausalLM:
    # It compiles kernels, and writes nothing that weights are read from.
    reload_safe_post_load = True
