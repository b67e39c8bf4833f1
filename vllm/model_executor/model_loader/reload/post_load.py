# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Post-load processing of a reloaded layer, and of the model as a whole.

A module that derives tensors from its weights, other than in the post-load processing
of a quantization method or an attention layer, has a method

    def refill_derived_tensors(self) -> None: ...

which writes them by `refill_derived`. It is called after all of that processing, at a
cold start and at the end of each reload, and may run any number of times.
"""

from contextlib import nullcontext

import torch

from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

__all__ = ["process_layer", "refill_derived_tensors", "run_model_hook"]

_PROCESSED = "_already_called_process_weights_after_loading"


def process_layer(layer: torch.nn.Module) -> None:
    """Runs the post-load processing of a layer's quantization method again.

    Args:
        layer: Layer in model format, on its device. One without such a method is left
            as it is.
    """
    quant_method = getattr(layer, "quant_method", None)
    if not isinstance(quant_method, QuantizeMethodBase):
        return
    from vllm.model_executor.layers.quantization.online.fp8 import OnlineLinearBase
    from vllm.model_executor.layers.quantization.online.moe_base import (
        OnlineMoEMethodBase,
    )
    from vllm.model_executor.model_loader.utils import (
        online_quantization_timing_context,
    )

    if hasattr(layer, _PROCESSED):
        delattr(layer, _PROCESSED)
    is_online = isinstance(quant_method, (OnlineLinearBase, OnlineMoEMethodBase))
    timing = (
        online_quantization_timing_context(layer, quant_method)
        if is_online
        else nullcontext()
    )
    with timing:
        quant_method.process_weights_after_loading(layer)
    # Processing may have made parameters anew, stamped with the global rank: a later
    # load would narrow those of a replicated layer at the wrong offset.
    if hasattr(layer, "update_param_tp_status"):
        layer.update_param_tp_status()


@torch.no_grad()
def refill_derived_tensors(model: torch.nn.Module) -> None:
    """Has each module of a model derive its tensors from its weights again.

    Args:
        model: Model whose weights are in kernel format.
    """
    for module in model.modules():
        refill = getattr(module, "refill_derived_tensors", None)
        if callable(refill):
            refill()


def run_model_hook(model: torch.nn.Module) -> None:
    """Refills what modules derive, then runs the model's own post-load hook, if any."""
    refill_derived_tensors(model)
    hook = getattr(model, "process_weights_after_loading", None)
    if callable(hook):
        hook()
