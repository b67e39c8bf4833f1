# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after, replacing

from .mimo_v2_qkv_loading import load_fused_qkv, take_fused_qkv, take_parts


class MiMoV2MTPLayer:
    def __init__(self, config, prefix, cache_config=None, quant_config=None):
        with after("self.self_attn = MiMoV2Attention($$$)"):
            take_parts(self.self_attn.qkv_proj)
            take_fused_qkv(self.self_attn, config.num_key_value_heads)


class MiMoV2MTP:
    def load_weights(self, weights):
        with replacing("tp_rank = get_tensor_model_parallel_rank()"):
            pass
        with replacing("tp_size = get_tensor_model_parallel_world_size()"):
            pass
        with replacing(
            "# The pairing state must outlive this call: AutoWeightsLoader delegates"
        ):
            pass
        with replacing(
            "# per contiguous group of names, so a pair can straddle two calls and"
        ):
            pass
        with replacing("# would otherwise be dropped silently."):
            pass
        with replacing("pending_qkv_proj = getattr($$$)"):
            pass
        with replacing("if pending_qkv_proj is None: $$$"):
            pass
        with replacing(
            "# Fused qkv_proj: the fp8 weight and its block scales arrive as"
        ):
            # Fused qkv_proj: see mimo_v2_qkv_layout for its chunks. A checkpoint that
            # is not FP8 has one part for each rank.
            pass
        with replacing(
            "# separate tensors and are pre-sharded at `config.num_key_value_heads`"
        ):
            pass
        with replacing(
            "# chunks of [Q_c | K_c | V_c] (see _shard_fp8_qkv_proj for the"
        ):
            pass
        with replacing(
            "# layout). Shard them together: a plain chunk(tp_size) only happens"
        ):
            pass
        with replacing(
            "# to be right when tp_size is that chunk count *and* the scales are"
        ):
            pass
        with replacing(
            "# tiled per chunk (they are 4 x 29 = 116 rows for MiMo-V2.5, not"
        ):
            pass
        with replacing("# tp_size slices of an even split)."):
            pass
        with replacing("is_fp8_weight = $V"):
            pass
        with replacing("is_fp8_scale = $V"):
            pass
        with replacing("if is_fp8_weight or is_fp8_scale: $$$"):
            if (
                not load_fused_qkv(
                    self, name, loaded_weight, params_dict, loaded_params
                )
                and name in params_dict
            ):
                params_dict[name].weight_loader(params_dict[name], loaded_weight)
                loaded_params.add(name)
