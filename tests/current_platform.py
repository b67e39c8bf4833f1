# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which platform vLLM takes this process to run on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from vllm.platforms import Platform


@contextmanager
def use_cuda_like_cpu_platform() -> Iterator[None]:
    """Makes `CudaLikeCpuPlatform` vLLM's platform for as long as the context lasts.

    Modules of vLLM hold the platform object, under names of their own. So the object
    stays, and its class changes: it does not matter which modules are imported by
    then. Environment variables that vLLM sets meanwhile are taken back.

    Limitation: what a module decides on import stays decided. Of the modules that
    loading needs, none decides on import anything that differs between this platform
    and vLLM's CPU platform. Those that serve do: run an engine, or a test on a GPU,
    in a process that has not been in this context.
    """
    from tests.cuda_like_platform import CudaLikeCpuPlatform
    from vllm.platforms import current_platform

    before = type(current_platform)
    with mock.patch.dict(os.environ):
        _change_class(current_platform, CudaLikeCpuPlatform)
        try:
            yield
        finally:
            _change_class(current_platform, before)


def _change_class(platform: "Platform", to: "type[Platform]") -> None:
    """Changes the class of the platform, and forgets what was selected for it."""
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.mla.prefill import selector as prefill_selector

    platform.__class__ = to
    selector._cached_get_attn_backend.cache_clear()
    prefill_selector._auto_select_mla_prefill_backend.cache_clear()
