# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Linear layers that run unquantized, whatever a checkpoint stores.

A layer takes unquantized, FP8 and four-bit tensors, each shard in its own format: that
is decided tensor by tensor. Each loads alone, in any order and any number of calls, and
post-load processing unpacks the rows that hold packed bytes, in place. The formats are
in `fp8_dequant` and `nvfp4_dequant`.
"""

from collections.abc import Collection
from typing import Any, ClassVar, Protocol

import torch

from vllm.model_executor.layers.linear import (
    QKVParallelLinear,
    ReplicatedLinear,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization.fp8_dequant import Fp8Format
from vllm.model_executor.layers.quantization.in_place_loading import InPlaceLoading
from vllm.model_executor.layers.quantization.nvfp4_dequant import Fp4Format
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    ScaleLoading,
    UnusedScale,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import (
    RUNTIME_DTYPES,
    LoadRecord,
    PackedRowsParameter,
    load_replicated,
    refuse_other_rows,
)
from vllm.model_executor.utils import (
    is_weights_pre_processed,
    retire_parameter,
    set_weight_attrs,
)
from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv

_ALIASES = {"weight_packed": "weight", "input_global_scale": "input_scale"}


class PackedFormat(Protocol):
    """How packed weights of one dtype are scaled, and unpacked."""

    scales: ClassVar[dict[str, type[ScaleLoading]]]
    """Their parameters, by name."""

    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        """The sets of scales any one of which completes a packed shard."""

    def unpack(self, layer: Any, rows: torch.Tensor, shard: int) -> None:
        """Unpacks a shard in place.

        Args:
            layer: The layer.
            rows: The shard's rows of the runtime weight, [rows, cols], with the packed
                row at the start of each.
            shard: Index of the shard.
        """


@register_weight_loader_v2_supported_method
class RowDequantLinearMethod(InPlaceLoading, UnquantizedLinearMethod):
    """Loads packed or unpacked weights, and runs the layer unquantized.

    The parameter `weight` is the runtime weight throughout, at one address; see
    `packed_rows` for where packed bytes are in it. The scales are retired by
    processing, and filled with NaN: they belonged to bytes that are gone. They stay
    registered, and load again. They take a byte for 16 weights.

    The runtime weight always has the layout of its rows. Layouts that
    `UnquantizedLinearMethod` may choose on the CPU, XPU and ROCm would move it.

    Attributes:
        runner: Runs the layer on its runtime weight; None where this method does.
    """

    supports_pre_processed_weights = True

    formats: ClassVar[dict[torch.dtype, PackedFormat]] = {
        torch.float8_e4m3fn: Fp8Format(),
        torch.uint8: Fp4Format(),
    }
    scales: ClassVar[dict[str, type[ScaleLoading]]] = {
        **Fp8Format.scales,
        **Fp4Format.scales,
        "input_scale": UnusedScale,
    }

    def __init__(self, weight_block_size: tuple[int, int] = (128, 128)) -> None:
        super().__init__()
        self.weight_block_size = weight_block_size
        self.runner: UnquantizedLinearMethod | None = None

    def parameter_for(
        self,
        layer: Any,
        name: str,
        loaded_weight: torch.Tensor,
        shard: int | None = None,
    ) -> str:
        """Names the parameter into which a checkpoint tensor is loaded.

        The one place where names and dtypes of checkpoints are told apart. It matters
        for `weight_scale`, which most formats have: scales of groups, of NVFP4, are in
        E4M3, and of MXFP4 in E8M0, for each row, or its bytes; all others are of FP8.

        Args:
            layer: The layer.
            name: What the checkpoint calls the tensor, after the layer's name.
            loaded_weight: The tensor.
            shard: Index of the shard that it is for; None if it is for all.

        Returns:
            Name of a parameter of the layer.

        Raises:
            ValueError: No parameter takes such a tensor.
        """
        if name == "weight_scale":
            return _scale_for(layer.weight.record, loaded_weight, shard)
        target = _ALIASES.get(name, name)
        if target == "weight" or target in self.scales:
            return target
        raise ValueError(
            f"found a checkpoint tensor {name!r} of dtype {loaded_weight.dtype} and "
            f"shape {tuple(loaded_weight.shape)}; expected one of "
            f"{('weight', *self.scales, *_ALIASES)}"
        )

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs,
    ) -> None:
        """Creates the weight, and the scales of all formats.

        Args:
            layer: The layer.
            input_size_per_partition: Columns of the weight on this rank.
            output_partition_sizes: Rows of each shard on this rank.
            input_size: Columns on all ranks.
            output_size: Rows on all ranks.
            params_dtype: Of the runtime weight.
            **extra_weight_attrs: `weight_loader`, and further attributes.

        Raises:
            ValueError: The layer cannot be run unquantized.
        """
        prefix = getattr(layer, "prefix", "") or type(layer).__name__
        if params_dtype not in RUNTIME_DTYPES:
            raise ValueError(
                f"{prefix}.weight: found dtype {params_dtype}; expected one of "
                f"{RUNTIME_DTYPES}: choose one as the model's dtype"
            )
        rows, cols = sum(output_partition_sizes), input_size_per_partition
        record = LoadRecord(
            prefix,
            tuple(output_partition_sizes),
            cols,
            ranks=(output_size // rows, input_size // cols),
            block=self.weight_block_size,
        )
        # For the loader of merged layers, which reckons in blocks.
        layer.weight_block_size = list(self.weight_block_size)
        loader = _loader_for(layer, record, extra_weight_attrs.pop("weight_loader"))
        weight = PackedRowsParameter(
            record=record,
            data=torch.empty(rows, cols, dtype=params_dtype),
            input_dim=1,
            output_dim=0,
            weight_loader=loader,
        )
        scales = {name: s.make(record, name, loader) for name, s in self.scales.items()}
        for name, param in {"weight": weight, **scales}.items():
            layer.register_parameter(name, param)
            set_weight_attrs(param, extra_weight_attrs)

    @property
    def judged_parameters(self) -> frozenset[str]:
        return frozenset({"weight", *self.scales})

    def check_loaded(self, layer: Any) -> None:
        """Checks that the layer can be processed.

        Args:
            layer: The layer.

        Raises:
            ValueError: A shard holds nothing, a packed one lacks a scale, or a scale
                came for one that is not packed.
        """
        if isinstance(layer.weight, PackedRowsParameter):
            self._check(layer, layer.weight.record)

    def forget_loaded(self, layer: Any) -> None:
        """Records that no shard holds anything, and that no scale came.

        Args:
            layer: The layer.
        """
        if isinstance(layer.weight, PackedRowsParameter):
            layer.weight.record.hold(None)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Unpacks the shards that hold packed bytes, in place.

        Shards that hold runtime values are left as they are, so that a second call
        changes nothing.

        Args:
            layer: The layer.

        Raises:
            ValueError: A shard holds nothing, a packed one lacks a scale, or a scale
                came for one that is not packed. Nothing was changed.
        """
        if current_platform.is_cpu():
            layer.cpu_linear = torch.nn.functional.linear
        weight = layer.weight
        if isinstance(weight, PackedRowsParameter):
            if not is_weights_pre_processed() and not self._is_dummy(layer):
                self._unpack(layer, weight)
            weight.record.hold(weight.dtype)
        for name in self.scales:
            scale = getattr(layer, name, None)
            if isinstance(scale, ScaleLoading):
                scale.clear()
            retire_parameter(layer, name, missing_ok=True)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.runner is not None:
            return self.runner.apply(layer, x, bias)
        return super().apply(layer, x, bias)

    def _is_dummy(self, layer: Any) -> bool:
        """Whether `load_format=dummy` has filled the layer, past the loaders."""
        record = layer.weight.record
        untouched = not any(record.held) and not record.scales
        return untouched and all(getattr(layer, name).is_set() for name in self.scales)

    def _unpack(self, layer: Any, weight: PackedRowsParameter) -> None:
        record = weight.record
        self._check(layer, record)
        for shard, dtype in enumerate(record.held):
            if dtype is not None and dtype in self.formats:
                rows = weight.data[record.rows(shard)]
                self.formats[dtype].unpack(layer, rows, shard)

    def _check(self, layer: Any, record: LoadRecord) -> None:
        for shard, dtype in enumerate(record.held):
            weight = f"{record.prefix}.weight, shard {shard}"
            came = frozenset(
                name
                for name, of_shard in record.scales
                if of_shard == shard and self.scales[name] is not UnusedScale
            )
            if dtype is None:
                raise ValueError(
                    f"{weight}: found rows that hold nothing; expected the "
                    "checkpoint's tensor: it was not loaded, or a reload left it out"
                )
            if dtype in self.formats:
                sets = self.formats[dtype].scale_sets(record, shard)
                _check_scales(f"{weight}: found a {dtype} weight", came, sets)
            elif came:
                raise ValueError(
                    f"{weight}: found no packed weight for its {_names(came)}, which "
                    "was loaded; expected both or none: send the weight in the same "
                    "reload, or leave its scale out"
                )


def _check_scales(
    found: str, came: frozenset[str], sets: Collection[frozenset[str]]
) -> None:
    if came not in sets:
        wanted = ", or ".join(_names(names) for names in sets)
        raise ValueError(
            f"{found} with {_names(came)}; expected it with {wanted}: send the weight "
            "and all of its scales in the same reload"
        )


def _names(names: Collection[str]) -> str:
    return " and ".join(sorted(names)) or "no scale"


def _scale_for(record: LoadRecord, scale: torch.Tensor, shard: int | None) -> str:
    """Names the parameter for a tensor that a checkpoint calls weight_scale."""
    rows_of = record.shard_rows if shard is None else (record.shard_rows[shard],)
    blocks = sum(cdiv(rows * record.ranks[0], record.block[0]) for rows in rows_of)
    # Block scales may be in E8M0, too, but have fewer rows than the weight.
    by_row = scale.dtype == torch.float8_e8m0fnu and scale.ndim == 2
    if by_row and scale.shape[1] > 1 and scale.shape[0] > blocks:
        return "weight_scale"
    of_blocks = scale.ndim == 4 or (scale.ndim == 2 and scale.shape[1] > 1)
    bytes_of_groups = scale.dtype == torch.uint8 and of_blocks and record.block[0] > 1
    if scale.dtype == torch.float8_e4m3fn or bytes_of_groups:
        return "weight_scale"
    return "weight_scale_inv" if of_blocks else "weight_channel_scale"


def _loader_for(layer: Any, record: LoadRecord, loader: Any) -> Any:
    """The weight loader of a layer's parameters."""
    if isinstance(layer, ReplicatedLinear):
        return load_replicated
    if len(record.shard_rows) == 1:
        return loader
    qkv = isinstance(layer, QKVParallelLinear)
    return refuse_other_rows(loader, layer.num_kv_head_replicas if qkv else 1)


def runs_unquantized(layer: Any) -> bool:
    """Whether a layer runs as the plain `UnquantizedLinearMethod` would run it.

    For what chooses another method to run such layers, see `run_with`.

    Args:
        layer: A linear layer.
    """
    method = layer.quant_method
    if isinstance(method, RowDequantLinearMethod):
        return method.runner is None
    return type(method) is UnquantizedLinearMethod


def run_with(layer: Any, method: UnquantizedLinearMethod) -> None:
    """Has another method run a layer. How the layer loads stays as it is.

    Args:
        layer: A linear layer that `runs_unquantized`.
        method: Runs it from now on.
    """
    if isinstance(layer.quant_method, RowDequantLinearMethod):
        layer.quant_method.runner = method
    else:
        layer.quant_method = method


def expect_runtime_weights(model: torch.nn.Module) -> None:
    """Has a new model take the weights that kernels read, and no scales.

    For loaders that fill the parameters with saved runtime weights, without their
    weight loaders. Processing then leaves the weights as they are.

    Args:
        model: The model; layers that have other methods are left alone.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, RowDequantLinearMethod):
            weight = layer.weight
            if isinstance(weight, PackedRowsParameter):
                weight.record.hold(weight.dtype)
            for name in method.scales:
                retire_parameter(layer, name, missing_ok=True)
