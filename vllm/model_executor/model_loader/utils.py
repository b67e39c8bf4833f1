# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after, before

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
