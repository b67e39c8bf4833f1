# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from vllm.model_executor.model_loader.reload.post_load import run_model_hook


class SparseNCCLWeightTransferEngine:
    def finish_weight_update(self) -> None:
        """Refresh what the model derives from its weights, where that may run again.

        Sparse patches are applied in place: there is no reload to finish.
        """
        if getattr(self.model, "reload_safe_post_load", False):
            run_model_hook(self.model)
