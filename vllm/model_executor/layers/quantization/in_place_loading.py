# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Methods whose parameters can be loaded again at any time, in their own storage."""

from abc import ABC, abstractmethod

import torch

__all__ = ["InPlaceLoading", "in_place_method"]


class InPlaceLoading(ABC):
    """A quantization method that knows what each part of its weights holds.

    Loaders write to the storage that kernels read, before processing and after it. A
    reload of either mode has them write there as tensors arrive, and leaves the
    judgement of what is missing to the method.
    """

    @property
    @abstractmethod
    def judged_parameters(self) -> frozenset[str]:
        """Names of the parameters that `check_loaded` judges."""

    @abstractmethod
    def check_loaded(self, layer: torch.nn.Module) -> None:
        """Checks that post-load processing can run. Nothing is changed.

        Args:
            layer: The layer, in model format.

        Raises:
            ValueError: Something is missing, or does not belong together.
        """

    @abstractmethod
    def forget_loaded(self, layer: torch.nn.Module) -> None:
        """Records that the layer holds nothing, as after a load that failed.

        Args:
            layer: The layer. Until all of it is loaded, `check_loaded` raises.
        """


def in_place_method(layer: torch.nn.Module) -> InPlaceLoading | None:
    """The layer's quantization method, if it loads in place."""
    method = getattr(layer, "quant_method", None)
    return method if isinstance(method, InPlaceLoading) else None
