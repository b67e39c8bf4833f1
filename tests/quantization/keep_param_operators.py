# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Stand-ins for operators that the processor, or a package that is absent, lacks.

Post-load processing calls them as they are called on the machine they are made for.
Operators for the CPU are vLLM's own where the installed vLLM has them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch


@contextmanager
def operators() -> Iterator[None]:
    """The operators that the cases need, for as long as the context lasts."""
    from vllm import _custom_ops as ops
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        current_platform.import_kernels()
    _define_zentorch()
    with ExitStack() as stack:
        for name, stand_in in _CUDA.items():
            stack.enter_context(mock.patch.object(ops, name, stand_in))
        for name, stand_in in _CPU.items():
            if not hasattr(torch.ops._C, name):
                patch = mock.patch.object(torch.ops._C, name, stand_in, create=True)
                stack.enter_context(patch)
        yield


def _repack(b_q_weight: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """As many bytes, in another order and shape."""
    rows, columns = b_q_weight.shape
    return b_q_weight.flip(0).reshape(rows // 2, columns * 2).contiguous()


def _quantize_fp8(
    tensor: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the operator computes, up to rounding."""
    bound = torch.finfo(torch.float8_e4m3fn).max
    scaled = (tensor.float() / scale).clamp(-bound, bound)
    return scaled.to(torch.float8_e4m3fn), scale


def _reorder_int4(weight: torch.Tensor) -> torch.Tensor:
    return weight.t().flip(0).contiguous().t()


def _pack_scale_fp8(scales: torch.Tensor) -> torch.Tensor:
    """Each scale eight times."""
    bytes_ = scales.view(torch.uint8)
    return bytes_.repeat_interleave(8, dim=-1).view(torch.float8_e4m3fn)


def _pack_weight(weight: torch.Tensor) -> torch.Tensor:
    return weight.flip(-1).contiguous()


def _pack_weight_scale_zp(
    weight: torch.Tensor, zero_points: torch.Tensor, scales: torch.Tensor, method: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _pack_weight(weight), _pack_weight(zero_points), _pack_weight(scales)


_CUDA = {
    "gptq_marlin_repack": _repack,
    "scaled_fp8_quant": _quantize_fp8,
    "cutlass_encode_and_reorder_int4b": _reorder_int4,
    "cutlass_pack_scale_fp8": _pack_scale_fp8,
}
_CPU = {
    "convert_weight_packed": _pack_weight,
    "convert_weight_packed_scale_zp": _pack_weight_scale_zp,
}


@cache
def _define_zentorch() -> torch.library.Library | None:
    """Zentorch's repacking: eight values of 4 bits in an int32; None if it is there."""
    if hasattr(torch.ops.zentorch, "zentorch_woq_repack_weight"):
        return None
    library = torch.library.Library("zentorch", "FRAGMENT")
    library.define("zentorch_woq_repack_weight(Tensor weight) -> Tensor")
    library.impl("zentorch_woq_repack_weight", _pack_int4, "CPU")
    return library


def _pack_int4(weight: torch.Tensor) -> torch.Tensor:
    """From int8 ``[N, K]`` to int32 ``[N, K / 8]``."""
    values = (weight.to(torch.int32) & 0xF).unflatten(-1, (-1, 8))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return (values << shifts).sum(dim=-1, dtype=torch.int32)


class ArkLinear(SimpleNamespace):
    """Stands in for the linear layer of the ARK library, which packs all into one."""

    bias: torch.Tensor | None = None
    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    cdt, wdt, sdt = "bf16", "int4", "bf16"

    def to(self, device: torch.device) -> "ArkLinear":
        return self

    def post_init(self) -> None:
        parts = self.qweight, self.scales, self.qzeros
        packed = [part.contiguous().view(-1).view(torch.int8) for part in parts]
        self.qweight = torch.cat(packed)
