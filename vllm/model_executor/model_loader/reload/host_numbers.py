# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Python numbers made of the weights, which no reload can change.

A captured CUDA graph holds such a number, not the place where it was read, and some
attention backends keep what they made of it in their first forward pass.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

__all__ = ["HostNumbers"]

READS_ATTENTION_SCALES = (
    "vllm.models.minimax_m3.nvidia",
    "vllm.models.qwen4_exp",
    "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.attention.backends.mla.flashinfer_mla",
    "vllm.v1.attention.backends.mla.flashinfer_mla_sparse",
    "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90",
    "vllm.v1.attention.backends.mla.tokenspeed_mla",
    "vllm.v1.attention.backends.rocm_aiter_fa",
    "vllm.v1.attention.backends.rocm_aiter_unified_attn",
    "vllm.v1.attention.backends.rocm_attn",
)
"""Modules and packages of attention layers and backends that compute with the floats of
a layer's scales, or with their copies on the host. Others read the tensors, which are
refilled, or read the floats anew each time."""

ASKS_WHETHER_SCALES_ARE_ONE = (
    "vllm.model_executor.layers.attention.mla_attention",
    "vllm.models.deepseek_v32",
    "vllm.v1.attention.backends.rocm_segmented_attn",
)
"""Those that choose by it what they launch."""

_ATTENTION_SCALES = (
    "_q_scale_float",
    "_k_scale_float",
    "_v_scale_float",
    "_prob_scale_float",
)

_NUMBERS_OF_KERNELS = ("flint_global_scale", "l2_activation_scale")


class _Number(NamedTuple):
    layer: Any
    layer_name: str
    name: str
    value: float
    only_whether_one: bool
    """Whether graphs and backends hold only that it is 1, or that it is not."""

    def is_same(self, found: float) -> bool:
        """Whether they would hold the same of another value."""
        if self.only_whether_one:
            return (found == 1.0) == (self.value == 1.0)
        return found == self.value


class HostNumbers:
    """The numbers of a model that graphs and backends hold, as a reload finds them."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Records the numbers.

        Args:
            model: The model, before anything of it is reloaded.
        """
        specialized = any(map(_has_specialized_decode, model.modules()))
        self._numbers = [
            _Number(layer, layer_name, name, getattr(layer, name), only_whether_one)
            for layer_name, layer in model.named_modules()
            for name, only_whether_one in _baked_numbers(layer, specialized)
        ]

    def require_unchanged(self) -> None:
        """Checks that processing the reloaded weights gave the same numbers.

        Raises:
            RuntimeError: It gave others.
        """
        problems = [
            f"{number.layer_name}.{number.name} is {found}; it was {number.value} "
            "before"
            for number in self._numbers
            if not number.is_same(found := getattr(number.layer, number.name))
        ]
        if problems:
            raise RuntimeError(
                "the reloaded weights change numbers that CUDA graphs and attention "
                "backends hold since they first ran:\n  "
                + "\n  ".join(problems)
                + "\nRestart the engine with these weights, or reload all of them with "
                "the scales that it was started with"
            )

    def restore(self) -> None:
        """Gives the layers the former numbers, with which the next reload compares."""
        for number in self._numbers:
            setattr(number.layer, number.name, number.value)


def _baked_numbers(
    layer: torch.nn.Module, specialized_decode: bool
) -> Iterator[tuple[str, bool]]:
    """Names of numbers that are held, and whether only that they are 1."""
    classes = {*type(layer).__mro__, *type(getattr(layer, "impl", None)).__mro__}
    modules = {base.__module__ for base in classes}
    names = [name for name in _ATTENTION_SCALES if hasattr(layer, name)]
    if specialized_decode or _any_in(modules, READS_ATTENTION_SCALES):
        yield from ((name, False) for name in names)
    elif _any_in(modules, ASKS_WHETHER_SCALES_ARE_ONE):
        yield from ((name, True) for name in names)
    for name in _NUMBERS_OF_KERNELS:
        if hasattr(layer, name):
            yield name, False


def _has_specialized_decode(module: torch.nn.Module) -> bool:
    """Whether it is a Kimi-K3 whose kernels were built with the floats."""
    decode = getattr(module, "specialized_decode", None)
    return _any_in({type(decode).__module__}, ("vllm.models.kimi_k3",))


def _any_in(modules: set[str], packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{p}.") for module in modules for p in packages)
