# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class AsyncLLM:
    async def abort_weight_update(self) -> None:
        """Give the weight update up that was started, if there is one.

        What was written is not undone: the model serves again once an update brings
        all weights of the layers that were written to.
        """
        await self.collective_rpc("abort_weight_update")
