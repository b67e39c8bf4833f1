# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Weight loaders of the fused QKV projections of MiMo-V2, one for each parameter.

A parameter has its layout as `qkv_layout`, its name as `full_name`, and upstream's
loader, for checkpoints that are not fused, as `shard_loader`.
"""

from typing import Any

import torch

from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.quantization.utils.dequant_scales import has_nan
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.mimo_v2_qkv_layout import (
    BLOCK,
    PADDING,
    row_runs,
    scale_rows_of,
    scale_runs,
    source_rows,
)


def set_loader(param: Any, loader: Any) -> None:
    """Gives a parameter one of these loaders.

    Args:
        param: The parameter.
        loader: The loader. The first that it had stays, for shards.
    """
    if getattr(param, "shard_loader", None) is None:
        param.shard_loader = getattr(param, "weight_loader", None)
    param.weight_loader = loader


def load_part(
    param: Any, loaded_weight: torch.Tensor, loaded_shard_id: Any = None
) -> None:
    """Loads the rank's part of a tensor that has one for each rank, or a shard.

    Args:
        param: A parameter of the layer.
        loaded_weight: The parts of all ranks, in order, or the shard.
        loaded_shard_id: The shard, as upstream's loaders have it.
    """
    if loaded_shard_id is not None:
        param.shard_loader(param, loaded_weight, loaded_shard_id)
        return
    parts = loaded_weight.chunk(get_tensor_model_parallel_world_size(), dim=0)
    default_weight_loader(param, parts[get_tensor_model_parallel_rank()])


def load_fused_weight(
    param: Any, loaded_weight: torch.Tensor, loaded_shard_id: Any = None
) -> None:
    """Loads the rank's rows of a fused weight, or one shard of another checkpoint.

    Args:
        param: The weight of the layer.
        loaded_weight: The whole fused weight, `float8_e4m3fn`, or the shard.
        loaded_shard_id: The shard, as upstream's loaders have it.

    Raises:
        ValueError: It has another dtype or shape; nothing was written.
    """
    if loaded_shard_id is not None:
        param.shard_loader(param, loaded_weight, loaded_shard_id)
        return
    expected = (param.qkv_layout.rows, param.shape[1])
    if loaded_weight.dtype != param.dtype or loaded_weight.shape != expected:
        chunks = param.qkv_layout.chunks
        q_rows, k_rows, v_rows = param.qkv_layout.segments
        raise ValueError(
            f"{param.full_name}: {describe(loaded_weight)}; expected {param.dtype} "
            f"and shape {expected}, of {chunks} chunks of {q_rows} rows "
            f"of Q, {k_rows} of K and {v_rows} of V"
        )
    zero = torch.zeros((), dtype=torch.uint8, device="cpu").view(param.dtype)
    for start, source, count in row_runs(param.qkv_layout):
        is_padding = source == PADDING
        rows = zero if is_padding else loaded_weight[source : source + count]
        param.data[start : start + count].copy_(rows)


def load_fused_scale(
    param: Any, loaded_weight: torch.Tensor, loaded_shard_id: Any = None
) -> None:
    """Loads the rank's rows of fused scales whose blocks it keeps.

    Args:
        param: The scales of the layer.
        loaded_weight: All scales, or those of a shard.
        loaded_shard_id: The shard, as upstream's loaders have it.

    Raises:
        ValueError: They have another shape, or one is NaN; nothing was written.
    """
    if loaded_shard_id is not None:
        param.shard_loader(param, loaded_weight, loaded_shard_id)
        return
    first_rows = source_rows(param.qkv_layout)[::BLOCK]
    _load_scale_rows(param, loaded_weight, first_rows)


def load_run_scale(param: Any, loaded_weight: torch.Tensor) -> None:
    """Loads the scale of each run of the rank's rows.

    Args:
        param: The `run_scale_inv` of the layer.
        loaded_weight: All scales, of the layer's fused weight.

    Raises:
        ValueError: They have another shape, or one is NaN; nothing was written.
    """
    _load_scale_rows(param, loaded_weight, scale_runs(param.qkv_layout)[0])


def _load_scale_rows(
    param: Any, loaded_weight: torch.Tensor, rows: torch.Tensor
) -> None:
    """Loads the scales of some rows of the checkpoint's weight."""
    layout = param.qkv_layout
    if loaded_weight.ndim != 2 or loaded_weight.shape[1] != param.shape[1]:
        raise ValueError(
            f"{param.full_name}: {describe(loaded_weight)}; expected "
            f"{param.shape[1]} columns, one for each {BLOCK} of the weight"
        )
    by_chunk = layout.begins_anew(len(loaded_weight))
    index = scale_rows_of(layout, rows, by_chunk).to(loaded_weight.device)
    if has_nan(loaded_weight):
        raise ValueError(
            f"{param.full_name}: {describe(loaded_weight)}, with NaN in it; expected "
            "numbers: the checkpoint is damaged"
        )
    param.data.copy_(loaded_weight[index])


def describe(tensor: torch.Tensor) -> str:
    """What was found, for messages."""
    return (
        f"found a checkpoint tensor of dtype {tensor.dtype} and shape "
        f"{tuple(tensor.shape)}"
    )
