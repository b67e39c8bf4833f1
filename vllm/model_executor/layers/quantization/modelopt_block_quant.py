# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before


class ModelOptBlockQuantMoEMethod:
    def process_weights_after_loading(self, layer):
        with before("experts.process_weights_after_loading(layer)"):
            experts.keep_constants(layer)
