# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from typing import Literal


class WeightTransferConfig:
    reload_mode: Literal["layerwise", "direct"] = "layerwise"
    """How received weights get into the model:

    - `layerwise`: buffer the weights of each layer, process the layer, and copy the
      result into the tensors that kernels read.
    - `direct`: write into the memory of those tensors, without a second copy of a
      layer. Models and layers that cannot be reloaded this way are refused when an
      update starts, and backends that do not support it when the engine is created.
    """
