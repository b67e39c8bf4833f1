# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The tiny GLM-5.x in NVFP4: sound on disk, and what vLLM 0.33.0 makes of it.

vLLM 0.33.0 cannot load MLA projections in NVFP4. The tests named `..._refuses_...`
state that, and go once it can.
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
    load_from_disk,
    load_from_stream,
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


def _load_from_stream(spec: TinyGlm5, folder: Path) -> None:
    load_from_stream(spec, folder, [make_checkpoint(spec).weights])


every_source = pytest.mark.parametrize(
    "load", [load_from_disk, _load_from_stream], ids=["disk", "stream"]
)


@every_source
@pytest.mark.parametrize("spec", SPECS[0::2], ids=SPEC_IDS[0::2])
def test_vllm_refuses_the_shape_of_a_packed_weight(
    spec: TinyGlm5,
    load: Callable[[TinyGlm5, Path], object],
    checkpoint_folder: FolderOf,
):
    with pytest.raises(AssertionError) as caught:
        load(spec, checkpoint_folder(spec))

    # The assertion has no message; it compares the shapes of parameter and weight.
    assert caught.traceback[-1].name == "load_merged_column_weight"


@every_source
@pytest.mark.parametrize("spec", SPECS[1::2], ids=SPEC_IDS[1::2])
def test_vllm_refuses_the_name_of_an_input_scale(
    spec: TinyGlm5,
    load: Callable[[TinyGlm5, Path], object],
    checkpoint_folder: FolderOf,
):
    with pytest.raises(KeyError, match=r"kv_a_proj_with_mqa\.input_scale"):
        load(spec, checkpoint_folder(spec))
