# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import runtime_state


class ShardedStateLoader:
    def load_weights(self, model, model_config):
        with replacing("model.state_dict()"):
            runtime_state(model)

    @staticmethod
    def save_model(model, path, pattern=None, max_size=None):
        with replacing("model.state_dict()"):
            runtime_state(model)
