# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The projections of a quantized GLM-5-next load in any order and any calls.

In two processes that is tested in `test_tensor_parallel_glm5`.
"""

from collections.abc import Callable
from functools import cache

import pytest

from tests.glm5_tiny import TinyGlm5
from tests.models.glm5next.projections import (
    FURTHER_SPECS,
    SPECS,
    Examiner,
    FolderOf,
    mixed_updates,
    ordered_updates,
    spec_id,
)

ExaminerOf = Callable[[TinyGlm5], Examiner]


every_spec = pytest.mark.parametrize("spec", SPECS, ids=spec_id)
every_spec_and_further = pytest.mark.parametrize(
    "spec", [*SPECS, *FURTHER_SPECS], ids=spec_id
)


@pytest.fixture(scope="module")
def examiner_of(glm5_process: None, checkpoint_folder: FolderOf) -> ExaminerOf:
    return cache(lambda spec: Examiner(spec, checkpoint_folder))


@every_spec
def test_cold_start_in_any_order_and_any_calls_is_exact(
    spec: TinyGlm5, examiner_of: ExaminerOf
):
    for update in ordered_updates(spec):
        assert not examiner_of(spec).cold_start(update), update


@every_spec_and_further
def test_cold_start_with_one_projection_in_bf16_is_exact(
    spec: TinyGlm5, examiner_of: ExaminerOf
):
    for update in mixed_updates(spec):
        if update.in_bf16:
            assert not examiner_of(spec).cold_start(update), update


@every_spec
def test_reload_in_any_order_and_any_calls_is_exact_and_moves_nothing(
    spec: TinyGlm5, examiner_of: ExaminerOf
):
    assert examiner_of(spec).reloads(ordered_updates(spec)) == {}


@every_spec_and_further
def test_reload_with_one_projection_in_bf16_or_left_out_is_exact(
    spec: TinyGlm5, examiner_of: ExaminerOf
):
    assert examiner_of(spec).reloads(mixed_updates(spec)) == {}
