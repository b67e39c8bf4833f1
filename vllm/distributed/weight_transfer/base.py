# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after

from vllm.model_executor.model_loader.reload import abort_reload


class WeightTransferEngine:
    """
    An engine that supports `reload_mode="direct"` sets `supports_direct_reload`, and
    passes `config.reload_mode` to `start_reload`.
    """

    supports_direct_reload: bool = False
    """Whether all weights reach the model through `load_weights`, between
    `start_reload` and `finish_reload`."""

    def __init__(self, config, vllm_config, device, model):
        """
        Raises:
            ValueError: The engine does not support the configured reload mode.

        """
        with after("self.config = config"):
            self._check_reload_mode()

    def _check_reload_mode(self) -> None:
        mode = self.config.reload_mode
        if mode == "layerwise" or self.supports_direct_reload:
            return
        raise ValueError(
            f"{type(self).__name__} (weight transfer backend "
            f"{self.config.backend!r}) does not support reload_mode={mode!r}: use "
            'reload_mode="layerwise", or a backend that does, such as "nccl" or "ipc"'
        )

    def abort_weight_update(self) -> None:
        """Give the current weight update up; does nothing where none is under way.

        The model gets its startup tensors back. Layers that were written to stay
        undefined until an update brings all of them.
        """
        abort_reload(self.model)
