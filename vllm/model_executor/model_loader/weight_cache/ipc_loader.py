# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after

from vllm.model_executor.utils import restore_lifecycle


class IpcModelLoader:
    def _apply_entries(self, model, state, device_index):
        with after('_register(name, tensor, entry.kind == "param")'):
            restore_lifecycle(registered[name], entry.lifecycle)
