# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layerwise reload as a session with a start, a finish and an abort."""

import torch

from vllm.config import ModelConfig

from .layerwise import finalize_layerwise_reload, initialize_layerwise_reload
from .post_load import run_model_hook
from .refusals import refuse_undeclared_hook

__all__ = ["LayerwiseReload"]


class LayerwiseReload:
    """One layerwise reload of one model."""

    def __init__(self, model: torch.nn.Module):
        self.model = model

    def start(self) -> None:
        """Put the model on the meta device and wrap its loaders."""
        refuse_undeclared_hook(self.model)
        initialize_layerwise_reload(self.model)

    def finish(self, model_config: ModelConfig) -> None:
        """Process what has not been processed, and what is derived of the whole."""
        finalize_layerwise_reload(self.model, model_config)
        run_model_hook(self.model)

    def abort(self) -> None:
        """Put the kernel tensors back."""
