# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing


class M2NWeightTransferEngine:
    """
    With `reload_mode="direct"` every parameter is received in full and goes through
    `load_weights`: what is written past it would not reach what is derived from it.
    """

    supports_direct_reload = True

    def _prepare_destination_plan(self, init_info):
        with replacing("quantization is None and $PP"):
            (
                quantization is None
                and parallel_config.pipeline_parallel_size == 1
                # Nothing derived from a weight is refreshed if it is written past
                # `load_weights`.
                and self.config.reload_mode == "layerwise"
            )

    def start_weight_update(self):
        with replacing("from $MODULE import (initialize_layerwise_reload,)"):
            from vllm.model_executor.model_loader.reload import start_reload
        with replacing("initialize_layerwise_reload(self.model)"):
            start_reload(self.model, self.config.reload_mode)

    def finish_weight_update(self):
        with replacing("from $MODULE import finalize_layerwise_reload"):
            from vllm.model_executor.model_loader.reload import finish_reload
        with replacing("finalize_layerwise_reload(self.model, self.model_config)"):
            finish_reload(self.model, self.model_config)
