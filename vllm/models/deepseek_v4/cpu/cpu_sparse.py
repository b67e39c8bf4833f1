# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import before, replacing

from vllm.model_executor.utils import retire_parameter


class DeepseekV4CPUAttention:
    def __init__(self, *args, **kwargs):
        with replacing("self._wo_a_packed: torch.Tensor | None = None"):
            pass

    def _wrap_wo_a_process_weights_after_loading(self):
        """The packed weight takes the place of ``wo_a``'s own. The scale is retired."""
        with before("quant_method = wo_a.quant_method"):
            # `_o_proj` multiplies by the weight itself: no kernel is to repack it.
            wo_a._cpu_skip_gemm_dispatch = True
        with replacing("self._wo_a_packed"):
            packed
        with replacing(
            "# orig_pwal VNNI-repacks layer.weight/scale for ordinary-linear"
        ):
            pass
        with replacing("# use that _o_proj never needs -- free them, same pattern as"):
            pass
        with replacing("# dispatch_cpu_unquantized_gemm's remove_weight=True."):
            pass
        with replacing('replace_parameter(layer, "weight", $$$)'):
            replace_parameter(layer, "weight", packed)
        with replacing("scale = getattr(layer, scale_attr)"):
            pass
        with replacing("replace_parameter(layer, scale_attr, $$$)"):
            retire_parameter(layer, scale_attr)

    def _o_proj(self, o, positions):
        with replacing("assert self._wo_a_packed is not None"):
            pass
        with replacing("self._wo_a_packed", inside="ops.bmm_cpu($$$)"):
            self.wo_a.weight
