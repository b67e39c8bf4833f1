# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from .layerwise import abort_layerwise_reload
from .lifecycle import ReloadMode, abort_reload, finish_reload, start_reload
from .undefined_weights import require_defined

__all__ += [
    "abort_layerwise_reload",
    "ReloadMode",
    "abort_reload",
    "finish_reload",
    "require_defined",
    "start_reload",
]
