# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Linear layers that run unquantized, whatever a checkpoint stores.

What the tensors of a checkpoint have in common is here: each is a parameter under its
checkpoint name, and loads alone, in any order and any number of calls. Post-load
processing unpacks, in place, the rows that hold packed bytes. The formats are in
`fp8_dequant` and `nvfp4_dequant`.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import torch

from vllm.model_executor.layers.linear import (
    LinearBase,
    ReplicatedLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.quantization.in_place_loading import InPlaceLoading
from vllm.model_executor.layers.quantization.utils.dequant_scales import (
    ScaleLoading,
    UnusedScale,
)
from vllm.model_executor.layers.quantization.utils.packed_rows import (
    RUNTIME_DTYPES,
    LoadRecord,
    PackedRowsParameter,
    RowState,
    Run,
    load_replicated,
)
from vllm.model_executor.utils import (
    is_weights_pre_processed,
    retire_parameter,
    set_weight_attrs,
)
from vllm.platforms import current_platform


class RowDequantConfig(QuantizationConfig):
    """Gives linear layers one of the methods of this family.

    It is not a quantization that a user can ask for. A model makes one for the layers
    that it runs unquantized, and passes it to them in place of the checkpoint's config.
    """

    method: ClassVar[type["RowDequantLinearMethod"]]

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return list(RUNTIME_DTYPES)

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RowDequantConfig":
        return cls()

    def get_quant_method(
        self, layer: torch.nn.Module, prefix: str
    ) -> QuantizeMethodBase | None:
        return self.method(self) if isinstance(layer, LinearBase) else None


class RowDequantLinearMethod(InPlaceLoading, UnquantizedLinearMethod):
    """Loads packed or unpacked weights, and runs the layer unquantized.

    The parameter `weight` is one object throughout, at one address: packed until
    processing (see `packed_rows` for the layout), the runtime weight after it. The
    scales are retired then, and filled with NaN: they belonged to bytes that are gone.
    They stay registered, and load again.

    The runtime weight always has the layout of its rows. Layouts that
    `UnquantizedLinearMethod` may choose on the CPU, XPU and ROCm would move it.

    Attributes:
        runner: Runs the layer on its runtime weight; None where this method does.
    """

    supports_pre_processed_weights = True

    packed_dtype: ClassVar[torch.dtype]
    values_per_byte: ClassVar[int]
    scale_names: ClassVar[tuple[str, ...]]
    dummy_scales: ClassVar[tuple[str, ...]]
    """Scales that belong to a weight whose bytes came from no loader."""

    def __init__(self, config: RowDequantConfig) -> None:
        super().__init__()
        self.config = config
        self.runner: UnquantizedLinearMethod | None = None

    @classmethod
    @abstractmethod
    def parameter_for(cls, name: str, loaded_weight: torch.Tensor) -> str:
        """Names the parameter into which a checkpoint tensor is loaded.

        The one place where names and dtypes of checkpoints are told apart.

        Args:
            name: What the checkpoint calls the tensor, after the layer's name.
            loaded_weight: The tensor.

        Returns:
            Name of a parameter of the layer.

        Raises:
            ValueError: No parameter takes such a tensor.
        """

    @abstractmethod
    def create_scales(
        self,
        layer: Any,
        record: LoadRecord,
        weight_loader: Callable,
        ranks: tuple[int, int],
    ) -> list[ScaleLoading]:
        """Makes the scales of a layer.

        Args:
            layer: The layer.
            record: Its record.
            weight_loader: Of its parameters.
            ranks: Number of slices of the weight, by rows and by columns.

        Raises:
            ValueError: The format cannot be cut as the layer is.
        """

    @abstractmethod
    def scale_sets(self, record: LoadRecord, shard: int) -> Collection[frozenset[str]]:
        """The sets of scales any one of which completes a packed shard."""

    @abstractmethod
    def unpack(self, layer: Any, rows: torch.Tensor, run: Run) -> None:
        """Unpacks a run of rows in place.

        Args:
            layer: The layer.
            rows: The whole runtime weight, [rows, cols].
            run: Which of its rows.
        """

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
        """Creates the weight and its scales, in checkpoint format.

        Args:
            layer: The layer.
            input_size_per_partition: Columns of the weight on this rank.
            output_partition_sizes: Rows of each shard on this rank.
            input_size: Columns on all ranks.
            output_size: Rows on all ranks.
            params_dtype: Of the runtime weight.
            **extra_weight_attrs: `weight_loader`, and further attributes.

        Raises:
            ValueError: The layer cannot be run unquantized, or the format cannot be
                cut as the layer is.
        """
        prefix = getattr(layer, "prefix", "") or type(layer).__name__
        if params_dtype not in RUNTIME_DTYPES:
            raise ValueError(
                f"{prefix}.weight: found dtype {params_dtype}; expected one of "
                f"{RUNTIME_DTYPES}: choose one as the model's dtype"
            )
        loader = extra_weight_attrs.pop("weight_loader")
        if isinstance(layer, ReplicatedLinear):
            loader = load_replicated
        cols = input_size_per_partition
        record = LoadRecord(prefix, tuple(output_partition_sizes), cols)
        ranks = (output_size // sum(output_partition_sizes), input_size // cols)
        scales = self.create_scales(layer, record, loader, ranks)
        weight = PackedRowsParameter(
            record=record,
            packed_dtype=self.packed_dtype,
            values_per_byte=self.values_per_byte,
            data=torch.empty(sum(output_partition_sizes), cols, dtype=params_dtype),
            input_dim=1,
            output_dim=0,
            weight_loader=loader,
        )
        for name, param in (("weight", weight), *((s.scale_name, s) for s in scales)):
            layer.register_parameter(name, param)
            set_weight_attrs(param, extra_weight_attrs)
        self.view_for_loading(layer)

    def view_for_loading(self, layer: Any) -> None:
        """Puts the layer into checkpoint format, over the storage that it has.

        No byte changes, and the record stays: rows that are not loaded afterwards keep
        the runtime values that they hold.

        Args:
            layer: The layer, created or processed.
        """
        if isinstance(layer.weight, PackedRowsParameter):
            layer.weight.show_packed()

    def view_for_running(self, layer: Any) -> None:
        """Undoes `view_for_loading`, for loaders of runtime weights.

        All rows count as runtime rows from now on.

        Args:
            layer: The layer.
        """
        weight = layer.weight
        if isinstance(weight, PackedRowsParameter) and not weight.is_meta:
            weight.show_runtime()
            weight.record.finish()

    def check_loaded(self, layer: Any) -> None:
        """Checks that the layer can be processed.

        Args:
            layer: The layer.

        Raises:
            ValueError: A row holds nothing, packed rows lack a scale, or a scale came
                for rows that are not packed.
        """
        if isinstance(layer.weight, PackedRowsParameter):
            self._check(layer, layer.weight.record)

    def forget_loaded(self, layer: Any) -> None:
        """Records that no row holds anything, and that no scale came.

        Args:
            layer: The layer.
        """
        if isinstance(layer.weight, PackedRowsParameter):
            record = layer.weight.record
            record.mark(slice(None), RowState.EMPTY)
            record.scales.clear()

    def process_weights_after_loading(self, layer: Any) -> None:
        """Unpacks the rows that hold packed bytes, in place.

        Rows that hold runtime values are left as they are, so that a second call
        changes nothing.

        Args:
            layer: The layer.

        Raises:
            ValueError: A row holds nothing, packed rows lack a scale, or a scale came
                for rows that are not packed. Nothing was changed.
        """
        if current_platform.is_cpu():
            layer.cpu_linear = torch.nn.functional.linear
        weight = layer.weight
        if is_weights_pre_processed():
            self.view_for_running(layer)
        elif isinstance(weight, PackedRowsParameter):
            # First: where a layerwise reload made the parameters anew, it left rows
            # that count as empty, and scales that are not NaN.
            self._adopt_dummy_weights(layer, weight.record)
            rows = weight.runtime_rows()
            self._check(layer, weight.record)
            for run in weight.record.runs(RowState.PACKED):
                self.unpack(layer, rows, run)
            self.view_for_running(layer)
        for name in self.scale_names:
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

    def _adopt_dummy_weights(self, layer: Any, record: LoadRecord) -> None:
        """Records what `load_format=dummy` has written past the loaders."""
        scales = [getattr(layer, name) for name in self.dummy_scales]
        untouched = not any(record.states) and not record.scales
        if untouched and all(scale.is_set() for scale in scales):
            record.mark(slice(None), RowState.PACKED)
            for scale in scales:
                scale.adopt()

    def _check(self, layer: Any, record: LoadRecord) -> None:
        for shard in range(len(record.shard_rows)):
            weight = f"{record.prefix}.weight, shard {shard}"
            if record.holds(shard, RowState.EMPTY):
                raise ValueError(
                    f"{weight}: found rows that hold nothing; expected the "
                    "checkpoint's tensor: it was not loaded, a layerwise reload left "
                    "it out, or it was moved to another device before it was processed"
                )
            came = frozenset(
                name
                for name, of_shard in record.scales
                if of_shard == shard
                and not isinstance(getattr(layer, name), UnusedScale)
            )
            if record.holds(shard, RowState.PACKED):
                self._check_scales(record, shard, came)
            elif came:
                raise ValueError(
                    f"{weight}: found no {self.packed_dtype} weight for its "
                    f"{_names(came)}, which was loaded; expected both or none: send "
                    "the weight in the same reload, or leave its scale out"
                )

    def _check_scales(self, record: LoadRecord, shard: int, came: frozenset) -> None:
        sets = self.scale_sets(record, shard)
        if came not in sets:
            wanted = ", or ".join(_names(names) for names in sets)
            raise ValueError(
                f"{record.prefix}.weight, shard {shard}: found a {self.packed_dtype} "
                f"weight with {_names(came)}; expected it with {wanted}: send the "
                "weight and all of its scales in the same reload"
            )


def _names(names: Collection[str]) -> str:
    return " and ".join(sorted(names)) or "no scale"


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


def view_model_for_running(model: torch.nn.Module) -> None:
    """Makes the weights of a new model the runtime weights that they will be.

    For loaders that fill the parameters with saved runtime weights, without their
    weight loaders. Processing then leaves the weights as they are.

    Args:
        model: The model; layers that have other methods are left alone.
    """
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if isinstance(method, RowDequantLinearMethod):
            method.view_for_running(layer)
            for name in method.scale_names:
                retire_parameter(layer, name, missing_ok=True)
