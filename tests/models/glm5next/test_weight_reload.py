# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quantized GLM-5-next is reloaded tensor by tensor, in place, in either mode.

Updates of some projections, or of mixed formats, are tested in `test_projections`.
"""

import random
from pathlib import Path

import pytest

from tests.glm5_tiny import (
    Architecture,
    GlmModel,
    TinyGlm5,
    WeightFormat,
    differences,
    expected_parameters,
    load_from_stream,
    make_checkpoint,
    reload_in_mode,
    tensors_of,
)
from tests.models.glm5next.projections import (
    FolderOf,
    Named,
    attention,
)

pytestmark = pytest.mark.usefixtures("glm5_process")

FORMATS = [WeightFormat.FP8, WeightFormat.QUARK, WeightFormat.NVFP4_W4A4]
MODELS = list(Architecture)
SEED = 20

every_mode = pytest.mark.parametrize("mode", ["direct", "layerwise"])
every_format = pytest.mark.parametrize("weight_format", FORMATS)


def _one_call(weights: list[Named]) -> list[list[Named]]:
    return [weights]


def _per_tensor(weights: list[Named]) -> list[list[Named]]:
    return [[named] for named in weights]


def _scales_first(weights: list[Named]) -> list[list[Named]]:
    scales = [named for named in weights if "_scale" in named[0]]
    return [scales, [named for named in weights if "_scale" not in named[0]]]


def _shuffled(weights: list[Named]) -> list[list[Named]]:
    print(f"seed {SEED}")
    shuffled = random.Random(SEED).sample(weights, len(weights))
    return [shuffled[i : i + 7] for i in range(0, len(shuffled), 7)]


SPLITS = {
    "one-call": _one_call,
    "per-tensor": _per_tensor,
    "scales-first": _scales_first,
    "shuffled": _shuffled,
}


def _cold(spec: TinyGlm5, folder: Path) -> GlmModel:
    return load_from_stream(spec, folder, [make_checkpoint(spec, seed=0).weights])


def _addresses(model: GlmModel) -> dict[str, int]:
    return {name: t.data_ptr() for name, t in tensors_of(model.module).items()}


@pytest.mark.parametrize("split", SPLITS)
@every_mode
@every_format
@pytest.mark.parametrize("architecture", MODELS)
def test_reload_is_exact_and_moves_nothing(
    architecture: Architecture,
    weight_format: WeightFormat,
    mode: str,
    split: str,
    checkpoint_folder: FolderOf,
):
    spec = TinyGlm5(architecture, weight_format)
    model = _cold(spec, checkpoint_folder(spec))
    before = _addresses(model)

    for seed in (1, 2):
        checkpoint = make_checkpoint(spec, seed=seed)
        reload_in_mode(model, SPLITS[split](checkpoint.weights), mode)

        expected = expected_parameters(spec, checkpoint)
        assert differences(model.module, expected) == {}
        assert _addresses(model) == before


@every_mode
@every_format
@pytest.mark.parametrize("architecture", MODELS)
def test_bf16_update_loads_into_the_same_layers(
    architecture: Architecture,
    weight_format: WeightFormat,
    mode: str,
    checkpoint_folder: FolderOf,
):
    spec = TinyGlm5(architecture, weight_format)
    model = _cold(spec, checkpoint_folder(spec))
    before = _addresses(model)
    plain = make_checkpoint(TinyGlm5(architecture, WeightFormat.BF16), seed=1)

    reload_in_mode(model, _per_tensor(plain.weights), mode)

    assert differences(model.module, expected_parameters(spec, plain)) == {}
    assert _addresses(model) == before

    quantized = make_checkpoint(spec, seed=2)
    reload_in_mode(model, [quantized.weights], mode)

    assert differences(model.module, expected_parameters(spec, quantized)) == {}
    assert _addresses(model) == before


@every_mode
@every_format
def test_update_with_a_weight_and_no_scale_is_refused(
    weight_format: WeightFormat, mode: str, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(weight_format=weight_format)
    model = _cold(spec, checkpoint_folder(spec))
    scale = f"{attention(spec)}q_b_proj.weight_scale"
    update = [
        named
        for named in make_checkpoint(spec, seed=1).weights
        if not named[0].startswith(scale)
    ]

    with pytest.raises(RuntimeError, match=r"q_b_proj\.weight.*expected it with"):
        reload_in_mode(model, [update], mode)
