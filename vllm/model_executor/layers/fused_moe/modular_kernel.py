# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch

from vllm.model_executor.utils import keep_constants


class FusedMoEExperts:
    # Tensors that the constructor makes and kernels read. Each class names its own;
    # `keep_constants` takes those of all bases.
    kept_constants: tuple[str, ...] = ()

    def keep_constants(self, layer: torch.nn.Module) -> None:
        """Takes the constants over that the layer's first experts object was made with.

        Post-load processing calls it on each new object, before the object's own
        ``process_weights_after_loading``: captured graphs read them at the addresses of
        the first.

        Args:
            layer: Layer that outlives the experts object and holds its constants.
        """
        keep_constants(layer, self)
