# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from typing import Any

import torch
from series import replacing

from vllm.model_executor.layers.quantization.utils.mxfp4_utils import (
    keep_triton_tensor,
)


def convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
    mxfp4_backend,
    layer,
    w13_weight,
    w2_weight,
    w13_weight_scale,
    w2_weight_scale,
    w13_bias=None,
    w2_bias=None,
    w13_input_scale=None,
    w2_input_scale=None,
    _cache_permute_indices=None,
):
    with replacing(
        "_swizzle_mxfp4(w13_weight, w13_weight_scale)",
        inside="elif mxfp4_backend == Mxfp4MoeBackend.AITER_MXFP4_FP8: $$$",
    ):
        _swizzle_parameters(layer, "w13", w13_weight, w13_weight_scale)
    with replacing(
        "_swizzle_mxfp4(w2_weight, w2_weight_scale)",
        inside="elif mxfp4_backend == Mxfp4MoeBackend.AITER_MXFP4_FP8: $$$",
    ):
        _swizzle_parameters(layer, "w2", w2_weight, w2_weight_scale)
    with replacing(
        "_swizzle_mxfp4(w13_weight, w13_weight_scale)",
        inside="elif mxfp4_backend in TRITON_BACKENDS: $$$",
    ):
        _swizzle_parameters(layer, "w13", w13_weight, w13_weight_scale)
    with replacing(
        "_swizzle_mxfp4(w2_weight, w2_weight_scale)",
        inside="elif mxfp4_backend in TRITON_BACKENDS: $$$",
    ):
        _swizzle_parameters(layer, "w2", w2_weight, w2_weight_scale)
    with replacing(
        "del layer.w13_weight",
        inside="elif mxfp4_backend == Mxfp4MoeBackend.AITER_MXFP4_FP8: $$$",
    ):
        pass
    with replacing(
        "del layer.w2_weight",
        inside="elif mxfp4_backend == Mxfp4MoeBackend.AITER_MXFP4_FP8: $$$",
    ):
        pass
    with replacing(
        "del layer.w13_weight",
        inside="elif mxfp4_backend in TRITON_BACKENDS: $$$",
    ):
        pass
    with replacing(
        "del layer.w2_weight",
        inside="elif mxfp4_backend in TRITON_BACKENDS: $$$",
    ):
        pass
    with replacing("del layer.w13_weight_scale"):
        pass
    with replacing("del layer.w2_weight_scale"):
        pass
    with replacing("# The original mxfp4 block scales have been swizzled into the"):
        pass
    with replacing(
        "# precision configs above and are no longer read by the kernel, so"
    ):
        pass
    with replacing("# drop the now-dead weight/scale Parameters to free their memory."):
        pass


def convert_weight_to_mxfp4_moe_kernel_format(
    mxfp4_backend,
    layer,
    w13_weight,
    w2_weight,
    w13_weight_scale,
    w2_weight_scale,
    w13_bias=None,
    w2_bias=None,
    _cache_permute_indices=None,
    activation=None,
    use_separated_a4w4=False,
    activation_key=None,
):
    with replacing("_swizzle_mxfp4(w13_weight, w13_weight_scale)"):
        _swizzle_parameters(layer, "w13", w13_weight, w13_weight_scale)
    with replacing("_swizzle_mxfp4(w2_weight, w2_weight_scale)"):
        _swizzle_parameters(layer, "w2", w2_weight, w2_weight_scale)
    with replacing("del layer.w13_weight"):
        pass
    with replacing("del layer.w2_weight"):
        pass
    with replacing("del layer.w13_weight_scale"):
        pass
    with replacing("del layer.w2_weight_scale"):
        pass
    with replacing("# The original mxfp4 block scales have been swizzled into the"):
        pass
    with replacing(
        "# precision configs above and are no longer read by the kernel, so"
    ):
        pass
    with replacing("# drop the now-dead weight/scale Parameters to free their memory."):
        pass


def _swizzle_parameters(
    layer: torch.nn.Module, prefix: str, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[Any, Any, Any]:
    """Swizzles a weight and its scale, and keeps them in the layer's parameters.

    Args:
        layer: Layer that has the parameters.
        prefix: ``"w13"`` or ``"w2"``.
        weight: Packed MXFP4 weight, ``[num_experts, rows, columns / 2]``, uint8.
        scale: Its E8M0 scale, ``[num_experts, rows, columns / 32]``, uint8.

    Returns:
        Weight, flex data and scale, as triton_kernels has them.
    """
    swizzled, flex, swizzled_scale = _swizzle_mxfp4(weight, scale)
    name = f"{prefix}_weight"
    return (
        keep_triton_tensor(layer, name, swizzled),
        flex,
        keep_triton_tensor(layer, f"{name}_scale", swizzled_scale),
    )
