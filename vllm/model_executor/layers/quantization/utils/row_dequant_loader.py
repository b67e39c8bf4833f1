# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Checkpoint tensors of a model, one by one, to the layers that unpack them in place.

For the `load_weights` of a model: no tensor waits for another, so it does not matter
which come in one call, or in which order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.row_dequant import RowDequantLinearMethod
from vllm.model_executor.layers.quantization.utils.packed_rows import RUNTIME_DTYPES
from vllm.utils.math_utils import cdiv

_OF_OTHER_LAYERS = ("bias", "q_scale", "k_scale", "v_scale", "kv_scale", "output_scale")
"""Tensors that checkpoints name after a projection, and that no weight needs."""

_E8M0_ONE = 127


class CheckpointTensorError(ValueError):
    """A tensor of a checkpoint that a model cannot take.

    Attributes:
        reason: What was found and what was expected, without the tensor's name.
    """

    def __init__(self, name: str, reason: str) -> None:
        """Makes the error.

        Args:
            name: Of the tensor in the checkpoint.
            reason: What was found and what was expected.
        """
        super().__init__(f"checkpoint tensor {name}: {reason}")
        self.reason = reason


class MissingRows(NamedTuple):
    """Rows at the end of a weight that a model has and its checkpoints may lack.

    Attributes:
        present: Number of rows in such a checkpoint.
        missing: Number of rows to add.
    """

    present: int
    missing: int

    def add_to(
        self, parameter: str, tensor: torch.Tensor, block_rows: int = 128
    ) -> torch.Tensor:
        """Adds the rows to a tensor of the checkpoint that lacks them.

        Args:
            parameter: Name of the parameter that the tensor is for.
            tensor: A weight, to which rows of zeros are added, or scales, to which ones
                are added for these rows.
            block_rows: Rows of a weight that share a row of `weight_scale_inv`.

        Returns:
            A new tensor, or the same one if it has another number of rows: it has them
            already, or is of one element, or is refused when it is loaded.
        """
        present, total = self.present, self.present + self.missing
        if parameter == "weight_scale_inv":
            present, total = cdiv(present, block_rows), cdiv(total, block_rows)
        if tensor.ndim == 0 or len(tensor) != present or total == present:
            return tensor
        value = int(parameter != "weight")
        if value and tensor.dtype == torch.uint8:
            value = _E8M0_ONE
        padded = tensor.new_empty(total, *tensor.shape[1:])
        padded[:present].copy_(tensor)
        padded[present:].fill_(value)
        return padded


class _Target(NamedTuple):
    name: str
    layer: Any
    shard: int | None


class RowDequantLoader:
    """Loads the checkpoint tensors of the layers that unpack them in place."""

    def __init__(
        self,
        model: torch.nn.Module,
        shards: Mapping[str, Sequence[str]],
        missing_rows: Mapping[str, MissingRows] | None = None,
    ) -> None:
        """Finds the layers.

        Args:
            model: The model whose `load_weights` it is.
            shards: Of each fused layer, by the last part of its name, the checkpoint's
                names of its shards.
            missing_rows: Rows that checkpoints lack, by the checkpoint's name of the
                layer or shard.
        """
        self._missing_rows = missing_rows or {}
        self._targets: dict[str | tuple[str, int], _Target] = {}
        for name, layer in model.named_modules():
            method = getattr(layer, "quant_method", None)
            if not isinstance(method, UnquantizedLinearMethod):
                continue
            parent, dot, own = name.rpartition(".")
            for shard, source in enumerate(shards.get(own, ())):
                target = _Target(name, layer, shard)
                self._targets[f"{parent}{dot}{source}"] = target
                self._targets[name, shard] = target
            if isinstance(method, RowDequantLinearMethod):
                self._targets[name] = _Target(name, layer, None)

    def load(
        self,
        name: str,
        tensor: torch.Tensor,
        checkpoint_name: str,
        loaded_params: set[str],
    ) -> bool:
        """Loads a tensor if it is of one of these layers.

        Args:
            name: Of the tensor, with the model's name for the module that the layer is
                in, and the checkpoint's names of layer and tensor. Where a
                `WeightsMapper` has set the tensor's `shard_id`, the model's name of the
                layer.
            tensor: The tensor.
            checkpoint_name: Of the tensor in the checkpoint, for messages.
            loaded_params: Takes the names of the parameters that count as loaded. A
                weight counts for its scales, too: an unquantized one needs none, and
                processing refuses a packed one without them.

        Returns:
            Whether the tensor is of one of these layers, and was loaded. False for a
            fused layer that takes it as it stands, since its checkpoint declares no
            quantization.

        Raises:
            CheckpointTensorError: The layer cannot take it; nothing was written.
        """
        source, _, suffix = name.rpartition(".")
        shard = getattr(tensor, "shard_id", None)
        target = self._targets.get(source if shard is None else (source, shard))
        if target is None or suffix in _OF_OTHER_LAYERS:
            return False
        method = target.layer.quant_method
        if not isinstance(method, RowDequantLinearMethod):
            params = dict(target.layer.named_parameters(prefix=target.name))
            find_parameter(params, f"{target.name}.{suffix}", tensor, checkpoint_name)
            return False
        try:
            parameter = method.parameter_for(target.layer, suffix, tensor, target.shard)
            self._load(target, parameter, tensor, source.rpartition(".")[2])
        except ValueError as error:
            raise CheckpointTensorError(checkpoint_name, str(error)) from error
        others = method.scales if parameter == "weight" else ()
        loaded_params.update(f"{target.name}.{n}" for n in (parameter, *others))
        return True

    def _load(
        self, target: _Target, parameter: str, tensor: torch.Tensor, source: str
    ) -> None:
        if source in self._missing_rows:
            block_rows = getattr(target.layer, "weight_block_size", (128,))[0]
            tensor = self._missing_rows[source].add_to(parameter, tensor, block_rows)
        param = getattr(target.layer, parameter)
        if target.shard is None:
            param.weight_loader(param, tensor)
        else:
            param.weight_loader(param, tensor, target.shard)


def find_parameter(
    params: Mapping[str, torch.Tensor],
    name: str,
    tensor: torch.Tensor,
    checkpoint_name: str,
) -> Any:
    """Finds the parameter that takes a tensor of a checkpoint as it stands.

    Args:
        params: Parameters of the model.
        name: Of the parameter.
        tensor: The tensor.
        checkpoint_name: Of the tensor in the checkpoint, for messages.

    Returns:
        The parameter.

    Raises:
        CheckpointTensorError: There is none, or it would be filled with the bytes of a
            quantized weight, without their scale.
    """
    found = f"found dtype {tensor.dtype} and shape {tuple(tensor.shape)}"
    if name not in params:
        raise CheckpointTensorError(
            checkpoint_name,
            f"{found} for the parameter {name}, which the model does not have: the "
            "layer is built without it, as for a checkpoint of another format",
        )
    param = params[name]
    if param.dtype in RUNTIME_DTYPES and is_packed(tensor):
        raise CheckpointTensorError(
            checkpoint_name,
            f"{found} for the parameter {name}; expected {param.dtype}: the layer runs "
            "unquantized and takes no scale: leave it unquantized in the checkpoint",
        )
    return param


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether a checkpoint tensor means nothing without a scale."""
    if tensor.dtype == torch.float8_e8m0fnu:
        return False
    return tensor.dtype.itemsize == 1 or not tensor.is_floating_point()


def refuse_packed(
    weights: Iterable[tuple[str, torch.Tensor]], params: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Passes tensors on, except packed ones for parameters that run unquantized.

    Args:
        weights: Tensors by name.
        params: Parameters that the loaders fill with the tensors of the same name.

    Yields:
        The tensors.

    Raises:
        CheckpointTensorError: As of `find_parameter`.
    """
    for name, tensor in weights:
        if name in params:
            find_parameter(params, name, tensor, name)
        yield name, tensor


@contextmanager
def named_in_errors(
    weights: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[Iterator[tuple[str, torch.Tensor]]]:
    """Has errors about a tensor give the name that the checkpoint has for it.

    Args:
        weights: Tensors by their names in the checkpoint, for loaders that take one
            after the other and know them by other names.

    Yields:
        The same tensors.

    Raises:
        CheckpointTensorError: Instead of a ValueError about one of them.
    """
    current = ""

    def remember() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal current
        for named in weights:
            current = named[0]
            yield named
        current = ""

    try:
        yield remember()
    except ValueError as error:
        if not current:
            raise
        reason = getattr(error, "reason", str(error))
        raise CheckpointTensorError(current, reason) from error
