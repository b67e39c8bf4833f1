# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.model_loader.reload.post_load import run_model_hook


class SparseNCCLWeightTransferEngine:
    def finish_weight_update(self):
        with replacing("pass"):
            run_model_hook(self.model)
