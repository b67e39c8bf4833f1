# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import after, removed, replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    named_in_errors,
)

from .mimo_v2_qkv_loading import load_fused_qkv, take_fused_qkv


class MiMoV2FlashDecoderLayer:
    def __init__(self, vllm_config, prefix=""):
        with after("if self.is_compressed_softmax_layer(): $$$"):
            take_fused_qkv(self.self_attn, config.num_key_value_heads)


class MiMoV2Model:
    def load_weights(self, weights):
        with replacing("tp_rank = get_tensor_model_parallel_rank()"):
            pass
        with replacing("tp_size = get_tensor_model_parallel_world_size()"):
            pass
        with replacing(
            "# Pro-format fused qkv_proj arrives as two tensors (weight and"
        ):
            pass
        with replacing("# weight_scale_inv). Store them per-layer so that they can be"):
            pass
        with replacing(
            "# sharded together. The state must outlive this call: AutoWeightsLoader"
        ):
            pass
        with replacing(
            "# delegates per contiguous group of names, so a pair can straddle two"
        ):
            pass
        with replacing("# calls and would otherwise be dropped silently."):
            pass
        with replacing("pending_fp8_qkv_proj = getattr($$$)"):
            pass
        with replacing("if pending_fp8_qkv_proj is None: $$$"):
            pass
        with replacing("self._try_load_fp8_qkv_proj($$$)"):
            load_fused_qkv(self, name, loaded_weight, params_dict, loaded_params)

    removed("_try_load_fp8_qkv_proj")


class MiMoV2FlashForCausalLM:
    def load_weights(self, weights):
        with replacing("return loader.load_weights(weights)"):  # noqa: SIM117
            with named_in_errors(weights) as named:
                return loader.load_weights(named)


removed("_requantize_fp8")
removed("_shard_fp8_qkv_proj")
