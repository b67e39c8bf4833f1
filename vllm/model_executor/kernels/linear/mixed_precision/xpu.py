# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing


class XPUW4A8IntLinearKernel:
    def process_weights_after_loading(self, layer):
        with replacing('delattr(layer, "weight")'):
            pass
