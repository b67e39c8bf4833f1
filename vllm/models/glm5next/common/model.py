# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from collections.abc import Iterable

import torch
from series import removed, replacing

from vllm.model_executor.layers.quantization.utils.row_dequant_loader import (
    find_parameter,
    named_in_errors,
    refuse_packed,
)

from .checkpoint import kv_a_missing_rows, projection_loader


class Glm5NextModel:
    def load_weights(self, weights):
        with replacing("kv_a_pad_size = 0"):
            missing_rows = kv_a_missing_rows(self.config)
        with replacing("if self.config.mla_use_nope and $REST: $$$"):
            pass
        with replacing("_pending_wk_fp8: dict = {}"):
            projections = projection_loader(self, self.config)
        with replacing("# Handle FP8 indexer WK: dequantize to BF16 for fusion with"):
            # Attention projections that a checkpoint may have in any format: each
            # tensor loads alone, and the layer unpacks its weight after loading.
            pass
        with replacing("# weights_proj into wk_weights_proj."):
            pass
        with replacing("_try_load_fp8_indexer_wk($$$)"):
            projections.load(name, loaded_weight, args[0], loaded_params)
        with replacing("# FP8 checkpoint: dequantize BF16-kept MLA projections"):
            pass
        with replacing("# (q_a_proj / kv_a_proj_with_mqa / o_proj) to BF16."):
            pass
        with replacing("if _try_load_fp8_attn_proj($$$): $$$"):
            pass
        with replacing("if kv_a_pad_size > 0 and $REST: $$$"):
            if ".kv_a_proj_with_mqa." in name:
                loaded_weight = missing_rows.add_to("weight", loaded_weight)
        with replacing("params_dict[name]", outside="for ($A, $B, $C, $D) in $E: $$$"):
            find_parameter(params_dict, name, loaded_weight, args[0])
        with replacing("params_dict[name_mapped]"):
            find_parameter(params_dict, name_mapped, loaded_weight, args[0])
        with replacing("params_dict[name]", inside="for ($A, $B, $C, $D) in $E: $$$"):
            find_parameter(params_dict, name, loaded_weight, args[0])


class Glm5NextForCausalLM:
    def load_weights(self, weights):
        with replacing("return loader.load_weights(weights)"):
            params = dict(self.lm_head.named_parameters(prefix="lm_head"))
            with named_in_errors(weights) as named:
                return loader.load_weights(refuse_packed(named, params))


class Glm5NextForConditionalGeneration:
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        with named_in_errors(weights) as named:
            return super().load_weights(named)


removed("_try_load_fp8_indexer_wk")
removed("_dequant_fp8_block")
removed("_FP8_ATTN_PROJS")
removed("_try_load_fp8_attn_proj")
