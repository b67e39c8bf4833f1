# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before, replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    find_parameter,
)
from vllm.model_executor.model_loader.mtp_validation import (
    is_mtp_completeness_check_enabled,
)

from .checkpoint import is_head_of_draft, kv_a_missing_rows, projection_loader


class Glm5NextMTP:
    def load_weights(self, weights):
        with replacing("_pending_wk_fp8: dict = {}"):
            projections = projection_loader(self, self.config)
        with replacing(
            "# ``kv_a_proj_with_mqa``; the FP8-to-BF16 path pads them for the model."
        ):
            # ``kv_a_proj_with_mqa``; pad them with zeros for the model shape.
            pass
        with replacing("kv_a_pad_size = 0"):
            missing_rows = kv_a_missing_rows(self.config)
        with replacing("if self.config.mla_use_nope and $REST: $$$"):
            pass
        with before('if "rotary_emb.inv_freq" in name: $$$'):
            checkpoint_name = name
        with replacing("spec_layer is None", inside="for $A, $B in weights: $$$"):
            spec_layer is None or is_head_of_draft(name)
        with replacing("_try_load_fp8_indexer_wk($$$)"):
            projections.load(name, loaded_weight, checkpoint_name, loaded_params)
        with replacing("# FP8 checkpoint: dequantize the BF16-kept MLA projections"):
            pass
        with replacing(
            "# (q_a_proj / kv_a_proj_with_mqa / o_proj) to BF16, mirroring the"
        ):
            pass
        with replacing(
            "# target model. The model holds fused_qkv_a_proj / o_proj in BF16,"
        ):
            pass
        with replacing(
            "# so the checkpoint's block-FP8 weight + weight_scale_inv for these"
        ):
            pass
        with replacing("# has no param home and would KeyError without this dequant."):
            pass
        with replacing("if _try_load_fp8_attn_proj($$$): $$$"):
            if ".kv_a_proj_with_mqa." in name:
                loaded_weight = missing_rows.add_to("weight", loaded_weight)
        with replacing(
            "params_dict[name]", outside="for mapping in expert_params_mapping: $$$"
        ):
            find_parameter(params_dict, name, loaded_weight, checkpoint_name)
        with replacing("params_dict[name_mapped]"):
            find_parameter(params_dict, name_mapped, loaded_weight, checkpoint_name)
        with replacing(
            "params_dict[name]", inside="for mapping in expert_params_mapping: $$$"
        ):
            find_parameter(params_dict, name, loaded_weight, checkpoint_name)
        with replacing("layer_idx not in loaded_layers"):
            layer_idx not in loaded_layers and is_mtp_completeness_check_enabled()
