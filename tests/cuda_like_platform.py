# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A platform on the CPU on which post-load processing goes as on CUDA.

vLLM's own CPU platform repacks weights for its CPU kernels and drops the originals,
and refuses sparse attention. This one is out of tree, which is vLLM's extension point
for platforms: it takes neither path, and everything else is vLLM's code as installed.
It serves to build, load and reload models. Forward passes do not run on it.
"""

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import Platform, PlatformEnum
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig


class CudaLikeCpuPlatform(CpuPlatform):
    """The CPU, as an out-of-tree platform."""

    _enum = PlatformEnum.OOT

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum,
        attn_selector_config: "AttentionSelectorConfig",
        num_heads: int | None = None,
    ) -> str:
        """Names the reference backend for latent attention, sparse or not.

        Loading constructs the backend and never runs it. The AMX backend, which
        vLLM prefers where it can, would drop the weight of `kv_b_proj`.
        """
        if attn_selector_config.use_mla:
            return AttentionBackendEnum.CPU_MLA.get_path()
        return super().get_attn_backend_cls(
            selected_backend, attn_selector_config, num_heads
        )

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Names the communicator that is PyTorch's, here gloo, and nothing else.

        That of vLLM's CPU platform adds shared memory, which its workers set up.
        """
        return Platform.get_device_communicator_cls()

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Makes the least of changes, the same on every processor.

        vLLM's CPU platform sets a block size that depends on the processor, which a
        hybrid model may refuse, and environment variables for its CPU workers.
        """
        vllm_config.scheduler_config.async_scheduling = False
        vllm_config.compilation_config.cudagraph_capture_sizes = []
