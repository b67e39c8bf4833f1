# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from dataclasses import field
from typing import TYPE_CHECKING

import torch
from series import replacing

from .arrivals import Arrivals

if TYPE_CHECKING:
    from .layerwise_state import LayerwiseState


class LayerReloadingInfo:
    # what the first load brought, recorded by `end_first_load`; None if it was not
    # observed or brought nothing, as with dummy weights
    first_load: Arrivals | None = None

    # metadata of tensors that were registered after `restore_metadata` was recorded,
    # or are not in it; names of all that were registered when the first load ended
    late_metadata: dict[str, torch.Tensor] = field(default_factory=dict)
    loaded_names: tuple[str, ...] | None = None

    # value of tensors that were created with the same value everywhere: what
    # post-load processing finds in those that are not loaded
    creation_values: dict[str, torch.Tensor] = field(default_factory=dict)

    # what the load under way brought so far
    arrivals: Arrivals = field(default_factory=Arrivals)

    # the layerwise reload under way; None in a first load
    reload: "LayerwiseState | None" = None

    def reset(self):
        with replacing("self.__init__($$$)"):
            self.__init__(  # type: ignore[misc]
                restore_metadata=self.restore_metadata,
                restore_device=self.restore_device,
                first_load=self.first_load,
                late_metadata=self.late_metadata,
                loaded_names=self.loaded_names,
                creation_values=self.creation_values,
            )
