# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import retire_parameter


class INCARKLinearMethod:
    def process_weights_after_loading(self, layer):
        with replacing('if hasattr(layer, "qzeros"): del layer.qzeros'):
            # The packed weight holds these as well.
            retire_parameter(layer, "qzeros", missing_ok=True)
        with replacing("del layer.scales"):
            retire_parameter(layer, "scales")
