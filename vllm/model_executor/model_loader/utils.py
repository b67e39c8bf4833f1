# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import torch
from series import after, before, replacing

from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)
from vllm.model_executor.model_loader.reload.post_load import refill_derived_tensors


def initialize_model(vllm_config, *, prefix="", model_class=None, model_config=None):
    with after("record_metadata_for_reloading(model)", inside="if $$$: $$$"):
        observe_first_load(model)
    with after("record_metadata_for_reloading(model)", outside="if $$$: $$$"):
        observe_first_load(model)


def process_weights_after_loading(model, model_config, target_device):
    with before("maybe_retie_word_embeddings(model, model_config)"):
        end_first_load(model)
    with before('if hasattr(model, "process_weights_after_loading"): $$$'):
        refill_derived_tensors(model)


@contextmanager
def device_loading_context(module, target_device):
    with replacing(
        "torch.empty_like($$$).copy_(p.data)",
        inside="if name in cpu_params: $$$",
    ):
        _copy_to_host(module, p, use_pin_memory)
    with replacing(
        "torch.empty_like($$$).copy_(p.data)",
        inside="if name in uva_offloaded_parameters and $MOVED: $$$",
    ):
        _copy_to_host(module, p, use_pin_memory)


def _copy_to_host(
    module: torch.nn.Module, param: torch.nn.Parameter, pin_memory: bool
) -> torch.Tensor:
    """A copy of a parameter on the host, that has room for what was loaded into it.

    `replace_parameter` may have made the parameter smaller than its storage. A storage
    that parameters share is not copied for each of them.
    """
    storage = param.untyped_storage()
    owners = sum(
        other.untyped_storage().data_ptr() == storage.data_ptr()
        for other in module.parameters()
    )
    size = storage.nbytes() if owners == 1 and param.storage_offset() == 0 else 0
    if size <= param.numel() * param.element_size():
        host = torch.empty_like(param.data, device="cpu", pin_memory=pin_memory)
    else:
        room = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pin_memory)
        host = torch.empty(0, dtype=param.dtype, device="cpu")
        host.set_(room.untyped_storage(), 0, param.shape, param.stride())
    return host.copy_(param.data)
