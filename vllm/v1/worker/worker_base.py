# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


class WorkerBase:
    def find_undefined_weights(self) -> str | None:
        """Why the model must not serve, if a reload of its weights has failed.

        Returns:
            The reason, or None for a model with sound weights.

        """
        return None
