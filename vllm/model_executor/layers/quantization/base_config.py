# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class QuantizeMethodBase:
    reloads_per_tensor: bool = False
    """
    Whether ``process_weights_after_loading`` is right again after a reload that
    brought only some of a layer's tensors: each of the others still holds what was
    loaded, in the same bytes, or is not read. A method may decide for each instance,
    as by the kernel that it has chosen.
    """

    supports_direct_reload: bool = True
    """
    Whether ``process_weights_after_loading`` may run again over tensors that were
    loaded anew into the storage that kernels read. Methods must declare it if they
    keep state of the first run, or release what they load.
    """
