# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

import torch
from series import replacing

from vllm.model_executor.utils import retire_parameter

_SCALE_NAMES = ("k_scale", "v_scale", "q_scale", "prob_scale")


class BaseKVCacheMethod:
    def reloads_per_tensor(self, layer: torch.nn.Module) -> bool:
        return True

    def process_weights_after_loading(self, layer):
        with replacing("for name in $NAMES: $$$"):
            _retire_scales(layer)
        # Doubled in place below, where float8 is of the fnuz kind.
        with replacing("layer.q_scale", inside="q_scale = layer.q_scale"):
            layer.q_scale.clone()
        with replacing("layer.prob_scale", inside="prob_scale = layer.prob_scale"):
            layer.prob_scale.clone()
        with replacing(
            "del layer.k_scale",
            inside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            _retire_scales(layer)
        with replacing(
            "del layer.v_scale",
            inside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass
        with replacing(
            "del layer.q_scale",
            inside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass
        with replacing(
            "del layer.prob_scale",
            inside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass
        with replacing(
            "del layer.k_scale",
            outside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            _retire_scales(layer)
        with replacing(
            "del layer.v_scale",
            outside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass
        with replacing(
            "del layer.q_scale",
            outside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass
        with replacing(
            "del layer.prob_scale",
            outside="if kv_cache_uses_per_token_head_scales($$$): $$$",
        ):
            pass


def _retire_scales(layer: torch.nn.Module) -> None:
    """Keeps the loaded scales: they are read here, and by no kernel."""
    for name in _SCALE_NAMES:
        retire_parameter(layer, name, missing_ok=True)
