# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.model_loader.mtp_validation import (
    is_mtp_completeness_check_enabled,
)


class Glm5NextMTP:
    def load_weights(self, weights):
        with replacing("layer_idx not in loaded_layers"):
            layer_idx not in loaded_layers and is_mtp_completeness_check_enabled()
