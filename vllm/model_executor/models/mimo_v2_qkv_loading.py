# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Fused FP8 QKV projections of MiMo-V2, whose weight and scales each load alone.

Mostly the blocks of a rank are blocks of the checkpoint, and each tensor goes straight
into its parameter. Where a block of the rank has rows of several of the checkpoint's,
its values must be rescaled, for which both tensors are needed. Then the weight keeps
the checkpoint's values, in the rank's order, until post-load processing, and their
scales go into a parameter of their own. See `mimo_v2_qkv_layout` for the order.
"""

from typing import Any

import torch

from vllm.model_executor.layers.linear import (
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    FLOAT_SCALE_DTYPES,
    has_nan,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    scaled_quantize,
)
from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    CheckpointTensorError,
)
from vllm.model_executor.models.mimo_v2_qkv_layout import (
    BLOCK,
    FusedQkvLayout,
    scale_runs,
)
from vllm.model_executor.models.mimo_v2_qkv_parameters import (
    describe,
    load_fused_scale,
    load_fused_weight,
    load_part,
    load_run_scale,
    set_loader,
)
from vllm.model_executor.models.utils import is_pp_missing_parameter
from vllm.model_executor.utils import is_weights_pre_processed, retire_parameter

CHUNK_ROWS = 8 * BLOCK
"""Rows that are quantized again at a time."""

_LOADED = ("weight", "weight_scale_inv")
_E4M3_NAN = 0x7F
_E8M0_NAN = 0xFF


@register_weight_loader_v2_supported_method
class FusedQkvFp8LinearMethod(Fp8LinearMethod):
    """Block FP8 that a checkpoint may have fused, in chunks.

    The parameters hold NaN until they are loaded. `run_scale_inv` is for scales that
    wait for the weight: one row for each run of the rank's rows that share a scale,
    float32. It is retired from the start.
    """

    def __init__(self, method: Fp8LinearMethod, layout: FusedQkvLayout) -> None:
        """Takes over a layer from the method that created its weights.

        Args:
            method: That method, of block FP8.
            layout: Of the layer.
        """
        super().__init__(method.quant_config)
        self.marlin_input_dtype = method.marlin_input_dtype
        self.fp8_linear = method.fp8_linear
        self.use_marlin = method.use_marlin
        self.layout = layout
        self.can_requantize = False
        self.requantizes = False
        """Whether processing did, and the values of the checkpoint are gone."""

    def take_over(self, layer: Any) -> None:
        """Gives the layer's parameters the loaders of fused tensors.

        Args:
            layer: The layer, as `create_weights` left it.
        """
        layer.quant_method = self
        scale = layer.weight_scale_inv
        layer.weight.data.view(torch.uint8).fill_(_E4M3_NAN)
        if scale.dtype.itemsize == 1:
            scale.data.view(torch.uint8).fill_(_E8M0_NAN)
        else:
            scale.data.fill_(float("nan"))
        self._add_loader(layer, "weight", load_fused_weight)
        self._add_loader(layer, "weight_scale_inv", load_fused_scale)
        if self.layout.may_requantize and layer.weight.shape[1] % BLOCK == 0:
            self.can_requantize = True
            rows = len(scale_runs(self.layout)[0])
            data = torch.full((rows, scale.shape[1]), float("nan"), dtype=torch.float32)
            param = torch.nn.Parameter(data, requires_grad=False)
            layer.register_parameter("run_scale_inv", param)
            self._add_loader(layer, "run_scale_inv", load_run_scale)
            retire_parameter(layer, "run_scale_inv")

    def _add_loader(self, layer: Any, name: str, loader: Any) -> None:
        param = getattr(layer, name)
        set_loader(param, loader)
        param.qkv_layout = self.layout
        param.full_name = f"{layer.prefix}.{name}"

    def parameter_for(self, kind: str, tensor: torch.Tensor) -> str:
        """Names the parameter into which a tensor of the checkpoint is loaded.

        Args:
            kind: `weight` or `weight_scale_inv`.
            tensor: The tensor.

        Raises:
            ValueError: No parameter takes it.
        """
        layout = self.layout
        if not layout.is_even:
            raise ValueError(
                f"{describe(tensor)} for {layout.num_heads} query heads and "
                f"{layout.num_kv_heads} KV heads; expected separate q_proj, k_proj and "
                f"v_proj: {layout.chunks} chunks, or {layout.tp_size} ranks, do not "
                "divide these heads evenly"
            )
        if kind == "weight":
            return kind
        if tensor.ndim != 2 or tensor.dtype not in FLOAT_SCALE_DTYPES:
            raise ValueError(
                f"{describe(tensor)}; expected two dimensions and one of "
                f"{FLOAT_SCALE_DTYPES}"
            )
        if layout.keeps_blocks(layout.begins_anew(len(tensor))):
            return kind
        if not self.can_requantize:
            raise ValueError(
                f"{describe(tensor)}; expected {layout.scale_rows(True)} rows, "
                f"whose blocks begin anew with each of {layout.chunks} chunks: "
                "this layer's rows cannot be quantized again, since it keeps K and V "
                f"of a chunk together, or its input is no multiple of {BLOCK} wide"
            )
        return "run_scale_inv"

    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        """As upstream's; not where the values of the checkpoint are gone."""
        return not self.requantizes and super().reloads_per_tensor(layer)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Quantizes rows again that lack scales of their own, then goes on as usual.

        It is done in place, and in chunks. `run_scale_inv` holds NaN afterwards, so
        that a second call does not do it twice.

        Args:
            layer: The layer.

        Raises:
            ValueError: A tensor was not loaded; nothing was changed.
        """
        if not is_weights_pre_processed() and not layer.weight.is_meta:
            scale = getattr(layer, "run_scale_inv", None)
            if scale is None or has_nan(scale):
                self._check_loaded(layer, _LOADED)
            else:
                self._check_loaded(layer, ("weight",))
                weight, block_scale = layer.weight.data, layer.weight_scale_inv.data
                requantize(weight, block_scale, scale.data, self.layout)
                scale.data.fill_(float("nan"))
                self.requantizes = True
        super().process_weights_after_loading(layer)

    def _check_loaded(self, layer: Any, names: tuple[str, ...]) -> None:
        for name in names:
            param = getattr(layer, name)
            if any(map(has_nan, param.data.split(CHUNK_ROWS))):
                raise ValueError(
                    f"{layer.prefix}.{name}: found NaN; expected the checkpoint's "
                    "values: all or a part of it was not loaded, or the checkpoint is "
                    "damaged; send it in the same load as the layer's other tensors"
                )


def requantize(
    weight: torch.Tensor,
    scale: torch.Tensor,
    run_scale: torch.Tensor,
    layout: FusedQkvLayout,
) -> None:
    """Quantizes a rank's rows again, in place and in chunks, to blocks of their own.

    Args:
        weight: [rows, columns], `float8_e4m3fn`, with the values of the checkpoint.
        scale: [ceil(rows / 128), columns / 128]. Its contents are replaced.
        run_scale: [runs, columns / 128], float32, the scale of each run of rows.
        layout: Of the layer.
    """
    runs = scale_runs(layout)[1].to(weight.device)
    for start in range(0, len(weight), CHUNK_ROWS):
        rows = weight[start : start + CHUNK_ROWS]
        factors = run_scale[runs[start : start + len(rows)]]
        values = rows.float() * factors.repeat_interleave(BLOCK, dim=1)
        # Rows of zeros leave the scale of a partial block as it is.
        values = torch.nn.functional.pad(values, (0, 0, 0, -len(rows) % BLOCK))
        quantized, new_scale = scaled_quantize(
            values, GroupShape(BLOCK, BLOCK), weight.dtype, compute_dtype=torch.float32
        )
        rows.copy_(quantized[: len(rows)])
        first = start // BLOCK
        scale[first : first + len(new_scale)].copy_(new_scale)


def take_fused_qkv(attention: Any, chunks: int) -> None:
    """Has the QKV projection of an attention layer take fused FP8 tensors.

    One of another format stays as it is.

    Args:
        attention: The layer, a `MiMoV2Attention` that has been built.
        chunks: Number of chunks that a fused checkpoint has.
    """
    layer = attention.qkv_proj
    method = layer.quant_method
    layout = FusedQkvLayout(
        num_heads=attention.total_num_heads,
        num_kv_heads=attention.total_num_kv_heads,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_head_dim,
        chunks=chunks,
        tp_rank=layer.tp_rank,
        tp_size=layer.tp_size,
        kv_chunk_rows=attention.kv_chunk_rows,
    )
    is_block_fp8 = type(method) is Fp8LinearMethod and method.weight_block_size
    if is_block_fp8 and list(method.weight_block_size) == [BLOCK, BLOCK]:
        FusedQkvFp8LinearMethod(method, layout).take_over(layer)


def take_parts(layer: Any) -> None:
    """Has a layer take tensors without a shard as one part for each rank, in order.

    Args:
        layer: The fused layer, whose loaders of shards stay as they are.
    """
    for param in layer.parameters():
        set_loader(param, load_part)


def load_fused_qkv(
    model: torch.nn.Module,
    name: str,
    tensor: torch.Tensor,
    params: dict[str, torch.nn.Parameter],
    loaded_params: set[str],
) -> bool:
    """Loads a tensor if it is the weight or the scales of a fused FP8 projection.

    Args:
        model: The model that has the layer.
        name: Of the tensor.
        tensor: The tensor.
        params: The model's parameters.
        loaded_params: Takes the names of the parameters that count as loaded.

    Returns:
        Whether it is such a tensor. One of a layer that the model is without is passed
        over.

    Raises:
        CheckpointTensorError: The layer cannot take it; nothing was written.
    """
    layer_name, _, kind = name.rpartition(".")
    if not layer_name.endswith("qkv_proj") or kind not in _LOADED:
        return False
    is_packed = kind != "weight" or tensor.dtype == torch.float8_e4m3fn
    if is_pp_missing_parameter(name, model) or f"{layer_name}.weight" not in params:
        return is_packed
    method = model.get_submodule(layer_name).quant_method
    if not is_packed and not isinstance(method, FusedQkvFp8LinearMethod):
        return False
    try:
        if not isinstance(method, FusedQkvFp8LinearMethod):
            dtype = params[f"{layer_name}.weight"].dtype
            raise ValueError(
                f"{describe(tensor)} for {layer_name}, which takes no fused FP8; "
                f"expected a weight of {dtype}, or FP8 in blocks of {BLOCK} by {BLOCK} "
                "as the checkpoint's quantization: the two do not belong together"
            )
        param: Any = params[f"{layer_name}.{method.parameter_for(kind, tensor)}"]
        param.weight_loader(param, tensor)
    except ValueError as error:
        raise CheckpointTensorError(name, str(error)) from error
    scales = (f"{layer_name}.{one}" for one in ("weight_scale_inv", "run_scale_inv"))
    loaded_params.update([name] if kind == "weight" else params.keys() & set(scales))
    return True
