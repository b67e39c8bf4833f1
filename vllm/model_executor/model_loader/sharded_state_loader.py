# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before, replacing

from vllm.model_executor.layers.quantization.row_dequant import expect_runtime_weights
from vllm.model_executor.utils import runtime_state


class ShardedStateLoader:
    def load_weights(self, model, model_config):
        with before("if not filepaths: $$$"):
            # What was saved are the weights after processing.
            expect_runtime_weights(model)
        with replacing("model.state_dict()"):
            runtime_state(model)

    @staticmethod
    def save_model(model, path, pattern=None, max_size=None):
        with replacing("model.state_dict()"):
            runtime_state(model)
