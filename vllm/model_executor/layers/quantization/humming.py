# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import after, before, replacing

from vllm.model_executor.layers.quantization.utils.humming.parameters import (
    checkpoint_parameters,
    kernel_operands,
    live_parameters,
    replace_converted,
)
from vllm.model_executor.utils import get_live_param, refill_derived


class HummingLinearMethod:
    """
    ``weight_schema`` and ``input_schema`` stay the checkpoint's, for a reload;
    ``kernel_weight_schema`` is that of the converted weight.
    """

    def prepare_weight_loader(self, layer, weight_loader):
        with replacing("not layer.is_fallback"):
            # Again after a reload has brought back the quantized parameters.
            hasattr(layer.weight, "param_name")

    def process_weights_after_loading(self, layer):
        with before("is_humming_weight = $$$"):
            checkpoint_schemas = self.weight_schema, self.input_schema
            if layer.weight.dim() == 0:
                # It waited for a checkpoint in which this layer is not quantized.
                del layer.weight
            sources = checkpoint_parameters(layer)
        with replacing(
            "layer.state_dict()", inside="self.weight_schema, tensors = $$$"
        ):
            dict(sources)
        with replacing(
            "layer.state_dict()", inside="self.input_schema, input_tensors = $$$"
        ):
            dict(sources)
        with replacing(
            "for name, _ in $$$: delattr(layer, name)",
            inside="if not is_humming_weight or not is_humming_input: $$$",
        ):
            replace_converted(layer, tensors)
            sources = live_parameters(layer)
        with replacing(
            "for name, tensor in tensors.items(): $$$",
            inside="if not is_humming_weight or not is_humming_input: $$$",
        ):
            pass
        with replacing("layer.state_dict()", inside="source_tensors = $$$"):
            sources
        with replacing(
            "for name, _ in $$$: $$$", inside="if force_requant and $$$: $$$"
        ):
            replace_converted(layer, tensors, keep=("bias",))
            sources = live_parameters(layer)
        with replacing(
            "for name, tensor in tensors.items(): $$$",
            inside="if force_requant and $$$: $$$",
        ):
            pass
        with replacing("dict(layer.named_parameters())"):
            sources
        with replacing(
            "for name, _ in $$$: delattr(layer, name)",
            follows='if "bias" in tensors: $$$',
        ):
            replace_converted(layer, tensors)
        with replacing(
            "for name, tensor in tensors.items(): $$$",
            follows="for name, _ in $$$: delattr(layer, name)",
            outside="if not is_humming_weight or not is_humming_input: $$$",
        ):
            self.kernel_weight_schema = self.weight_schema
            self.weight_schema, self.input_schema = checkpoint_schemas
        with replacing("_hm.create_humming_locks(layer.weight.device)"):
            refill_derived(self, "locks", _hm.create_humming_locks(layer.weight.device))

    def apply(self, layer, x, bias=None):
        with replacing("_hm.humming_forward($$$)"):
            _hm.humming_forward(
                self.layer_config,
                inputs=flatten_inputs,
                bias=getattr(layer, "zero_bias" if bias is None else "bias", None),
                **kernel_operands(layer),
                input_scale=get_live_param(layer, "input_scale"),
                input_scale_2=get_live_param(layer, "input_scale_2"),
                hadamard_block_size=self.kernel_weight_schema.hadamard_block_size,
                locks=self.locks,
                compute_config=self.compute_config,
            )


class HummingMoEMethod:
    def process_weights_after_loading(self, layer):
        """A reload clears the layer's flag, and so converts again.

        The kernel of the first conversion stays, unless its configuration changes: it
        refers to the parameters, which do.
        """
        with replacing('if getattr(self, "processed", False): $$$'):
            if getattr(layer, "_already_called_process_weights_after_loading", False):
                return
        with replacing("self.processed = True"):
            layer._already_called_process_weights_after_loading = True
            previous = getattr(self, "humming_configs", None)
        with after("self.humming_configs = $$$"):
            if self.humming_configs == previous:
                return
        with after("self.moe_kernel = make_humming_moe_kernel($$$)"):
            self.moe_kernel.fused_experts.keep_constants(layer)
