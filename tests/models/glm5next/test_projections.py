# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The projections of a quantized GLM-5-next load in any order and any calls.

In two processes that is tested in `test_tensor_parallel_glm5`.
"""

import pytest

from tests.glm5_tiny import TinyGlm5
from tests.models.glm5next.projections import (
    SPECS,
    Examiner,
    FolderOf,
    mixed_updates,
    ordered_updates,
)

pytestmark = pytest.mark.usefixtures("glm5_process")


def _id(spec: TinyGlm5) -> str:
    return f"{spec.architecture}-{spec.weight_format}"


@pytest.fixture(scope="module", params=SPECS, ids=_id)
def examiner(glm5_process: None, request, checkpoint_folder: FolderOf) -> Examiner:
    return Examiner(request.param, checkpoint_folder)


def test_cold_start_in_any_order_and_any_calls_is_exact(examiner: Examiner):
    for update in ordered_updates(examiner.spec):
        assert not examiner.cold_start(update), update


def test_cold_start_with_one_projection_in_bf16_is_exact(examiner: Examiner):
    for update in mixed_updates(examiner.spec):
        if update.in_bf16:
            assert not examiner.cold_start(update), update


def test_reload_in_any_order_and_any_calls_is_exact_and_moves_nothing(
    examiner: Examiner,
):
    assert examiner.reloads(ordered_updates(examiner.spec)) == {}


def test_reload_with_one_projection_in_bf16_or_left_out_is_exact(examiner: Examiner):
    assert examiner.reloads(mixed_updates(examiner.spec)) == {}
