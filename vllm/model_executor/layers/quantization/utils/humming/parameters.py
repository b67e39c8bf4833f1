# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reads what Humming converts from a layer, and writes what it made of it.

A layer may be converted again after a reload: from the same parameters as the first
time, into the same parameters.
"""

from collections.abc import Container, Mapping

import torch

from vllm.model_executor.utils import (
    get_live_param,
    kernel_parameters,
    move_parameter,
    replace_parameter,
    retire_parameter,
)

_LOADED_AS = {
    "weight": ("weight_packed", "qweight"),
    "weight_scale": ("weight_scale_inv", "scales"),
    "zero_point": ("weight_zero_point", "qzeros"),
}
"""Names that checkpoints have for what Humming calls by one name."""


def checkpoint_parameters(
    layer: torch.nn.Module, prefix: str = ""
) -> dict[str, torch.nn.Parameter]:
    """The parameters that Humming converts.

    They are the live ones of the first call, on each later call too: a conversion
    retires some of them, and adds others that no checkpoint has.

    Args:
        layer: Layer to look at.
        prefix: What their names start with, such as ``"w13_"``.

    Returns:
        Each parameter under its runtime name, without the prefix.
    """
    known: dict[str, list[str]] = layer.__dict__.setdefault("humming_sources", {})
    if prefix not in known:
        known[prefix] = list(live_parameters(layer, prefix))
    return {name: layer.get_parameter(prefix + name) for name in known[prefix]}


def live_parameters(
    layer: torch.nn.Module, prefix: str = ""
) -> dict[str, torch.nn.Parameter]:
    """The live parameters of a layer, under their runtime names without a prefix.

    Args:
        layer: Layer to look at.
        prefix: Only names that start with it, such as ``"w13_"``.
    """
    return {
        name.removeprefix(prefix): param
        for name, param in kernel_parameters(layer).items()
        if name.startswith(prefix)
    }


def replace_converted(
    layer: torch.nn.Module,
    tensors: Mapping[str, torch.Tensor],
    prefix: str = "",
    keep: Container[str] = (),
) -> None:
    """Gives a layer what Humming converted, and keeps what was loaded registered.

    A tensor goes into the parameter of its name, else into the loaded one that it was
    made of, which gets that name too, else into a new one. Parameters that got none
    are retired.

    Args:
        layer: Layer that was converted.
        tensors: The tensors by name, without the prefix.
        prefix: What the names of the layer's parameters start with.
        keep: Names, without the prefix, of parameters to leave alone.
    """
    targets = _targets(layer, tensors, prefix)
    placed = {
        name: _apart(layer, tensor.detach(), layer._parameters.get(targets[name]))
        for name, tensor in tensors.items()
    }
    for name, tensor in placed.items():
        if layer._parameters.get(targets[name]) is not None:
            move_parameter(layer, targets[name], prefix + name)
        replace_parameter(layer, prefix + name, tensor)
    written = {id(layer._parameters[prefix + name]) for name in tensors}
    for name, param in live_parameters(layer, prefix).items():
        if id(param) not in written and name not in keep:
            retire_parameter(layer, prefix + name)


def _targets(
    layer: torch.nn.Module, tensors: Mapping[str, torch.Tensor], prefix: str
) -> dict[str, str]:
    """The parameter that each tensor goes into; its own name where that is new."""
    targets = {}
    for name in tensors:
        loaded = (prefix + other for other in _LOADED_AS.get(name, ()))
        names = [prefix + name, *loaded]
        found = (one for one in names if layer._parameters.get(one) is not None)
        targets[name] = next(found, prefix + name)
    return targets


def _apart(
    layer: torch.nn.Module, tensor: torch.Tensor, target: torch.nn.Parameter | None
) -> torch.Tensor:
    """The tensor, or a copy of it if it is on a parameter that it does not go into."""
    address = tensor.untyped_storage().data_ptr()
    is_shared = any(
        param is not None
        and param is not target
        and param.untyped_storage().data_ptr() == address
        for param in layer._parameters.values()
    )
    return tensor.clone() if is_shared and address != 0 else tensor


def kernel_operands(layer: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """What Humming's kernel reads of a linear layer's weight.

    Args:
        layer: A converted layer.

    Returns:
        Arguments of ``humming_forward``; None is what the layer does not have.
    """
    names = ("weight", "weight_scale", "weight_scale_2", "zero_point")
    return {name: get_live_param(layer, name) for name in names}


def expert_operands(layer: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """What Humming's kernel reads of routed experts, besides their weights.

    Args:
        layer: Converted routed experts.

    Returns:
        Arguments of ``make_humming_moe_quant_config``; None is what the layer does not
        have.
    """
    names = {
        "scale": "weight_scale",
        "gscale": "weight_scale_2",
        "zp": "zero_point",
        "bias": "bias",
    }
    return {
        f"{operand}_{short}": get_live_param(layer, f"{prefix}_{name}")
        for operand, prefix in (("w1", "w13"), ("w2", "w2"))
        for short, name in names.items()
    }
