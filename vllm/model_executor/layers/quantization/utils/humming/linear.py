# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from series import replacing

from vllm.model_executor.utils import kernel_parameters


def prepare_humming_linear_layer_config(
    layer,
    quant_config,
    input_quant_config=None,
    *,
    input_schema=None,
    allow_input_schema_fallback=True,
):
    with replacing("dict(layer.named_parameters(recurse=False))"):
        kernel_parameters(layer)
    with replacing("for name, _ in $PARAMETERS: delattr(layer, name)"):
        # Under every name: an alias would keep the checkpoint's tensor alive.
        for name in list(layer._parameters):
            delattr(layer, name)
