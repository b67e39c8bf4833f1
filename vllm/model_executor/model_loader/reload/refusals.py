# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a reload cannot do right, found before anything is written."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

__all__ = [
    "refuse_direct_reload",
    "refuse_unsafe_model",
]

FINALIZES_IN_LOAD_WEIGHTS = frozenset(
    {
        "vllm.model_executor.models.adapters."
        "as_seq_cls_model.<locals>.ModelForSequenceClassification",
        "vllm.model_executor.models.bert.BertForMaskedLM",
        "vllm.model_executor.models.expert_substitution",
        "vllm.model_executor.models.nemotron_vl.LlamaNemotronVLForSequenceClassification",
        "vllm.model_executor.models.openpangu.OpenPanguModel",
        "vllm.models.deepseek_v4.amd.dspark",
        "vllm.models.flint.model",
        "vllm.models.flint.ops.moe",
        "vllm.models.inkling.amd.model",
        "vllm.models.inkling.nvidia.model",
        "vllm.models.muse_spark.nvidia.mega_moe",
        "vllm.models.step5.nvidia.model",
        "vllm.models.step5.nvidia.mtp",
    }
)
"""Models that post-process inside `load_weights`, once for each call, on whatever has
arrived by then: modules, or classes where others of the module do not."""


WRITES_PAST_LOADERS = frozenset({"vllm.model_executor.models.gpt_oss"})
"""Modules of models whose `load_weights` copies into parameters itself: a reload does
not see what arrives."""


class Writable(NamedTuple):
    """A parameter that loaders write to during a direct reload."""

    name: str
    tensor: torch.Tensor
    view: torch.Tensor | None
    """Its model format over its own storage; None if it gets scratch."""


def refuse_direct_reload(
    model: torch.nn.Module, parameters: Sequence[Writable]
) -> None:
    """Check that a model can be reloaded directly.

    Args:
        model: The model, in kernel format. It is not changed.
        parameters: Each parameter object once.

    Raises:
        RuntimeError: It cannot be; the message has every reason.
    """
    reasons = [
        *_model_reasons(model),
        *(reason for name, m in model.named_modules() for reason in _layer(name, m)),
        *(reason for p in parameters for reason in _parameter_reasons(p)),
        *_overlaps(parameters),
    ]
    if reasons:
        raise RuntimeError(
            f"{type(model).__name__} cannot be reloaded directly:\n  "
            + "\n  ".join(reasons)
            + '\nUse reload_mode="layerwise", or restart the engine with the new '
            "weights; nothing was changed"
        )


def refuse_unsafe_model(model: torch.nn.Module) -> None:
    """Check what a reload of either mode needs of a model.

    Raises:
        RuntimeError: The model has a post-load hook and does not declare
            `reload_safe_post_load`, or writes past the loaders of its parameters.
    """
    hook_reason = _hook_reason(model)
    reasons = [*([hook_reason] if hook_reason else []), *_unseen_writes(model)]
    if reasons:
        raise RuntimeError(
            f"{'; '.join(reasons)}; restart the engine with the new weights; nothing "
            "was changed"
        )


def _hook_reason(model: torch.nn.Module) -> str | None:
    hook = getattr(model, "process_weights_after_loading", None)
    if not callable(hook) or _is_declared_safe(model):
        return None
    return (
        f"{type(model).__name__}.process_weights_after_loading is not declared safe to "
        "run again (`reload_safe_post_load = True`), and without it a reload would "
        "leave stale what it derives from the weights"
    )


def _unseen_writes(model: torch.nn.Module) -> list[str]:
    names = {
        base.__name__
        for module in model.modules()
        for base in type(module).__mro__
        if base.__module__ in WRITES_PAST_LOADERS and "load_weights" in vars(base)
    }
    return [
        f"{name}.load_weights writes past the weight loaders of parameters"
        for name in sorted(names)
    ]


def _is_declared_safe(model: torch.nn.Module) -> bool:
    """Whether the model's own hook is declared, and not only one that it overrides."""
    for namespace in (model, *type(model).__mro__):
        if "reload_safe_post_load" in vars(namespace):
            return bool(model.reload_safe_post_load)
        if "process_weights_after_loading" in vars(namespace):
            return False
    return False


def _finalizes_in_load_weights(base: type) -> bool:
    names = {base.__module__, f"{base.__module__}.{base.__qualname__}"}
    return "load_weights" in vars(base) and not names.isdisjoint(
        FINALIZES_IN_LOAD_WEIGHTS
    )


def _model_reasons(model: torch.nn.Module) -> list[str]:
    reasons = []
    if hook_reason := _hook_reason(model):
        reasons.append(hook_reason)
    reasons += _unseen_writes(model)
    if getattr(model, "_do_torchao_reload", False):
        reasons.append("torchao quantizes its weights again from high precision")
    finalizing = {
        base.__name__
        for module in model.modules()
        for base in type(module).__mro__
        if _finalizes_in_load_weights(base)
    }
    reasons += [
        f"{name}.load_weights post-processes, once for each call, what has arrived"
        for name in sorted(finalizing)
    ]
    return reasons


def _layer(name: str, module: torch.nn.Module) -> list[str]:
    reasons = []
    method = getattr(module, "quant_method", None)
    if isinstance(method, QuantizeMethodBase):
        if type(method).uses_meta_device:
            reasons.append(
                f"{name}: {type(method).__name__} quantizes online and has released "
                "what it quantized"
            )
        elif not method.supports_direct_reload:
            reasons.append(
                f"{name}: {type(method).__name__} cannot process its weights again"
            )
    if getattr(module, "eplb_state", None) is not None:
        reasons.append(f"{name}: its experts may have been moved by EPLB")
    return reasons


def _parameter_reasons(parameter: Writable) -> list[str]:
    name, tensor, _ = parameter
    if isinstance(tensor, UninitializedParameter):
        return [f"{name} gets its shape while it is loaded"]
    if is_traceable_wrapper_subclass(tensor) or is_traceable_wrapper_subclass(
        tensor.data
    ):
        return [f"{name} is a {type(tensor).__name__}, which wraps other tensors"]
    if tensor.is_meta:
        return [f"{name} is on the meta device: a reload of it was abandoned"]
    if getattr(tensor, "_vllm_is_uva_offloaded", False):
        return [f"{name} is offloaded to host memory"]
    return []


def _overlaps(parameters: Sequence[Writable]) -> list[str]:
    """Pairs of parameters that one loader would write for the other."""
    stretches = sorted(
        (
            (view.data_ptr(), view.data_ptr() + _span(view), name)
            for name, _, view in parameters
            if view is not None and view.numel()
        ),
        key=lambda stretch: stretch[:2],
    )
    reasons = []
    end, holder = 0, ""
    for start, stop, name in stretches:
        if start < end:
            reasons.append(f"{name} lies in the storage of {holder}")
        if stop > end:
            end, holder = stop, name
    return reasons


def _span(view: torch.Tensor) -> int:
    """Bytes from the first to the last element."""
    last = sum(
        (size - 1) * stride
        for size, stride in zip(view.shape, view.stride(), strict=True)
    )
    return (last + 1) * view.element_size()
