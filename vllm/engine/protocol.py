# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class EngineClient:
    async def abort_weight_update(self) -> None:
        """Give the weight update up that was started, if there is one."""
        raise NotImplementedError
