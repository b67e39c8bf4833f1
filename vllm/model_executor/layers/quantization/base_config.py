# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch


class QuantizeMethodBase:
    supports_direct_reload: bool = True
    """
    Whether ``process_weights_after_loading`` may run again over tensors that were
    loaded anew into the storage that kernels read. Methods must declare it if they
    keep state of the first run, or release what they load.
    """

    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        """Whether a reload may leave out some of the layer's tensors.

        True promises that ``process_weights_after_loading`` is right again when the
        others still hold the bytes that it left there the last time: it changes no
        value that it reads, at most how the same bytes are viewed.

        Args:
            layer: Layer whose weights were processed before.
        """
        return False
