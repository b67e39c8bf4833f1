# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from dataclasses import field
from typing import Any

from series import before, replacing

from vllm.model_executor.utils import lifecycle_of


class TensorEntry:
    lifecycle: dict[str, Any] = field(default_factory=dict)
    """Whether a parameter is retired, and its runtime name, see `lifecycle_of`."""

    @classmethod
    def from_tensor(cls, tensor, kind):
        with before("tensor = tensor.detach()"):
            lifecycle = lifecycle_of(tensor)
        with replacing("cls(kind=kind, ipc_args=ipc_args)"):
            cls(kind=kind, ipc_args=ipc_args, lifecycle=lifecycle)
        with replacing("cls(kind=kind, cpu_tensor=tensor.cpu())"):
            cls(kind=kind, cpu_tensor=tensor.cpu(), lifecycle=lifecycle)
