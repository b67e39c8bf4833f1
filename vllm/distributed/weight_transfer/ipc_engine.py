# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class IPCWeightTransferEngine:
    supports_direct_reload = True

    def start_weight_update(self) -> None:
        """Make the model ready for the incoming checkpoint weights."""
        from vllm.model_executor.model_loader.reload import start_reload

        start_reload(self.model, self.config.reload_mode)

    def finish_weight_update(self) -> None:
        """Finish the reload after all weights have been received."""
        from vllm.model_executor.model_loader.reload import finish_reload

        try:
            finish_reload(self.model, self.model_config)
        finally:
            # Every reduce_tensor call is a fresh export with its own refcount slot:
            # releasing once per update lets the trainer reclaim its staging buffer.
            self._packed_importer.close()

    def abort_weight_update(self) -> None:
        try:
            super().abort_weight_update()
        finally:
            self._packed_importer.close()
