# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before

from vllm.model_executor.layers.quantization.row_dequant import view_model_for_running


class ShardedStateLoader:
    def load_weights(self, model, model_config):
        with before("state_dict = self._filter_subtensors(model.state_dict())"):
            # What was saved are the weights after processing.
            view_model_for_running(model)
