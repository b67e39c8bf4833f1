# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The tiny GLM-5.x is loaded after post-load processing, and reloaded directly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.glm5_tiny import (
    GlmModel,
    TinyGlm5,
    build,
    differences,
    expected_parameters,
    load_from_stream,
    make_checkpoint,
    process_weights,
    reload_direct,
)
from tests.models.glm5next.test_tiny_glm5 import LOADABLE, spec_id
from vllm.model_executor.model_loader.reload import require_defined
from vllm.model_executor.model_loader.reload.audit import (
    compare,
    compare_models,
    take_census,
)

pytestmark = pytest.mark.usefixtures("glm5_process")

FolderOf = Callable[[TinyGlm5], Path]


def _cold(spec: TinyGlm5, folder: Path, seed: int) -> GlmModel:
    return load_from_stream(spec, folder, [make_checkpoint(spec, seed=seed).weights])


@pytest.mark.parametrize("spec", LOADABLE, ids=spec_id)
def test_every_checkpoint_name_is_found_after_post_load_processing(
    spec: TinyGlm5, checkpoint_folder: FolderOf
):
    weights = make_checkpoint(spec, seed=0).weights
    folder = checkpoint_folder(spec)
    fresh = build(spec, folder)
    found_before = cast(Any, fresh.module).load_weights(iter(weights))
    process_weights(fresh)

    assert cast(Any, fresh.module).load_weights(iter(weights)) == found_before


@pytest.mark.parametrize("spec", LOADABLE, ids=spec_id)
def test_three_direct_reloads_each_equal_a_cold_start(
    spec: TinyGlm5, checkpoint_folder: FolderOf
):
    folder = checkpoint_folder(spec)
    model = _cold(spec, folder, seed=0)
    before = take_census(model.module)

    for seed in (1, 2, 3):
        checkpoint = make_checkpoint(spec, seed=seed)
        reload_direct(model, [checkpoint.weights])

        require_defined(model.module)
        assert not differences(model.module, expected_parameters(spec, checkpoint))
        after = take_census(model.module)
        found = compare(before, after).findings
        assert {finding.kind for finding in found} == {"changed"}
        report = compare_models(after, take_census(_cold(spec, folder, seed).module))
        assert report.ok, report.to_table()
