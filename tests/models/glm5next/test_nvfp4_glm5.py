# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The checkpoint of the tiny GLM-5.x in NVFP4 is sound.

That it loads is tested with the other formats, in `test_tiny_glm5`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.glm5_tiny import (
    Architecture,
    TinyGlm5,
    WeightFormat,
    build,
    make_checkpoint,
)

pytestmark = pytest.mark.usefixtures("glm5_process")

FolderOf = Callable[[TinyGlm5], Path]

SPECS = [
    TinyGlm5(architecture, weight_format)
    for architecture in Architecture
    for weight_format in (WeightFormat.NVFP4_W4A16, WeightFormat.NVFP4_W4A4)
]
SPEC_IDS = [f"{spec.architecture}-{spec.weight_format}" for spec in SPECS]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=SPEC_IDS)


@every_spec
def test_reference_agrees_with_vllm_s_own_dequantization(spec: TinyGlm5):
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
        dequantize_to_dtype,
    )

    checkpoint = make_checkpoint(spec)
    packed = {n: t for n, t in checkpoint.tensors.items() if t.dtype == torch.uint8}

    assert len(packed) == 8
    for name, weight in packed.items():
        scale = checkpoint.tensors[f"{name}_scale"]
        scale_2 = checkpoint.tensors[f"{name}_scale_2"]
        dequantized = dequantize_to_dtype(
            weight, scale, scale_2, torch.bfloat16, swizzle=False
        )
        assert torch.equal(dequantized, checkpoint.expected[name]), name


@every_spec
def test_input_scales_come_with_w4a4_only(spec: TinyGlm5):
    names = make_checkpoint(spec).tensors
    scaled = [name for name in names if name.endswith(".input_scale")]

    has_input = spec.weight_format is WeightFormat.NVFP4_W4A4
    assert len(scaled) == (8 if has_input else 0)


@every_spec
def test_model_builds_with_the_quantization_of_its_config(
    spec: TinyGlm5, checkpoint_folder: FolderOf
):
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    model = build(spec, checkpoint_folder(spec))

    quantization = model.vllm_config.quant_config
    assert isinstance(quantization, ModelOptNvFp4Config)
    has_input = spec.weight_format is WeightFormat.NVFP4_W4A4
    assert quantization.quant_method == ("NVFP4" if has_input else "W4A16_NVFP4")
