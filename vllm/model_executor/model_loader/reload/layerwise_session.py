# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layerwise reload as a session with a start, a finish and an abort."""

import torch

from vllm.config import ModelConfig

from .layerwise import (
    abort_layerwise_reload,
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

__all__ = ["LayerwiseReload"]


class LayerwiseReload:
    """One layerwise reload of one model."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self._started = False

    def start(self) -> None:
        """Put the model on the meta device and wrap its loaders.

        Raises:
            RuntimeError: A layerwise reload is under way, or the model's own post-load
                hook may not run again. Nothing has changed.
        """
        initialize_layerwise_reload(self.model)
        self._started = True

    def finish(self, model_config: ModelConfig) -> None:
        """Process what has not been processed.

        Args:
            model_config: Its dtype is what attention layers are processed for.

        Raises:
            RuntimeError: A layer did not get all that it needs, or could not be put
                back in place.
        """
        finalize_layerwise_reload(self.model, model_config)

    def abort(self) -> None:
        """Put the kernel tensors back, and drop what has been buffered."""
        if self._started:
            abort_layerwise_reload(self.model)
