# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from typing import Literal

Operation = Literal[
    "init", "shutdown", "start", "start_draft", "update", "finish", "abort"
]
