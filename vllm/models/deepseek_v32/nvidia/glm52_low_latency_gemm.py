# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import replacing

from vllm.model_executor.layers.quantization.row_dequant import (
    run_with,
    runs_unquantized,
)


def enable_glm52_low_latency_gemm(module, dtype):
    with replacing("type(child.quant_method) is not UnquantizedLinearMethod"):
        not runs_unquantized(child)
    with replacing("child.quant_method = $VALUE"):
        run_with(child, GLM52LowLatencyLinearMethod(spec.build_plan()))
