# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What counts as a difference between two censuses."""

import pytest
import torch

from tests.model_executor.model_loader.toy_quantized_model import (
    add_attribute,
    change_dtype,
    drop_buffer,
    flip_bit,
    toy_model,
    transpose_in_place,
    turn_buffer_into_attribute,
)
from vllm.model_executor.model_loader.reload.audit import (
    compare,
    compare_models,
    take_census,
)


def test_a_refill_in_place_is_a_change_of_contents_only():
    model = toy_model()
    before = take_census(model)

    model[1].folded.fill_(3)
    report = compare(before, take_census(model))

    assert [(f.kind, f.name) for f in report.findings] == [("changed", "1.folded")]


def test_an_object_that_takes_the_id_and_address_of_another_is_rebound():
    model = toy_model()
    model[0].folded = torch.zeros(4)
    before = take_census(model)
    freed = id(model[0].folded)

    del model[0].folded
    replacements = [torch.zeros(4) for _ in range(200)]
    same_id = [tensor for tensor in replacements if id(tensor) == freed]
    assert same_id, "the interpreter did not give the freed id again"
    model[0].folded = same_id[0]
    report = compare(before, take_census(model))

    assert ("rebound", "0.folded") in {(f.kind, f.name) for f in report.findings}


def test_growth_names_the_device_and_the_storages():
    model = toy_model()
    before = take_census(model)

    model[1].leaked = [torch.zeros(8), torch.zeros(2)]
    report = compare(before, take_census(model))

    (grown,) = [finding for finding in report.findings if finding.kind == "grown"]
    assert grown.name == "cpu"
    assert "(+40)" in grown.detail
    assert "1.leaked[0] +32" in grown.detail
    assert "1.leaked[1] +8" in grown.detail


def test_a_view_of_held_memory_is_not_growth():
    model = toy_model()
    before = take_census(model)

    model[0].rows = model[0].weight.data[1:]
    report = compare(before, take_census(model))

    assert [(f.kind, f.name) for f in report.findings] == [("new", "0.rows")]


def test_a_finding_for_a_tensor_with_many_names_is_listed_once():
    model = toy_model()
    model[1].weight = model[0].weight
    before = take_census(model)

    flip_bit(model)
    (finding,) = compare(before, take_census(model)).findings

    assert finding.name == "0.weight"
    assert "1 other names" in finding.detail


def test_a_lost_name_says_where_the_tensor_is_now():
    model = toy_model()
    model[0].alias = model[0].weight
    before = take_census(model)

    del model[0].weight
    (missing,) = compare(before, take_census(model)).findings

    assert (missing.kind, missing.name) == ("missing", "0.weight")
    assert "now 0.alias" in missing.detail


def test_without_digests_the_summary_says_that_contents_were_not_compared():
    model = toy_model()
    before = take_census(model, digest=False)

    flip_bit(model)
    report = compare(before, take_census(model, digest=False))

    assert report.ok
    assert "contents not compared" in report.summary


def test_contents_of_runtime_state_may_change_but_its_address_may_not():
    model = toy_model()
    model[0].kv_cache = [torch.zeros(4)]
    before = take_census(model)

    model[0].kv_cache[0].fill_(1)
    assert compare(before, take_census(model)).ok
    model[0].kv_cache[0] = torch.zeros(4)
    report = compare(before, take_census(model))

    assert {finding.name for finding in report.findings} == {"0.kv_cache[0]"}


def test_equal_models_are_equal_wherever_they_lie():
    assert compare_models(toy_model(), toy_model()).ok


@pytest.mark.parametrize(
    "plant, kind",
    [
        (flip_bit, "changed"),
        (transpose_in_place, "mismatched"),
        (change_dtype, "mismatched"),
        (turn_buffer_into_attribute, "mismatched"),
        (drop_buffer, "missing"),
        (add_attribute, "new"),
    ],
)
def test_a_warm_model_that_differs_from_the_cold_one_is_listed(plant, kind):
    warm, cold = toy_model(), toy_model()

    plant(warm)
    report = compare_models(warm, cold)

    assert [finding.kind for finding in report.findings] == [kind]


def test_models_may_hold_runtime_state_of_different_sizes():
    warm, cold = toy_model(), toy_model()
    warm[0].kv_cache = torch.zeros(8)
    cold[0].kv_cache = torch.zeros(2)
    cold[1].kv_cache = torch.zeros(2)

    assert compare_models(warm, cold).ok


def test_a_storage_shared_in_one_model_only_is_listed_for_both_names():
    warm, cold = toy_model(), toy_model()
    cold[1].weight.data = cold[0].weight.data

    report = compare_models(warm, cold)

    details = {f.name: (f.kind, f.detail) for f in report.findings}
    assert details == {
        "0.weight": ("mismatched", "shares its storage with 1.weight -> nothing"),
        "1.weight": ("mismatched", "shares its storage with 0.weight -> nothing"),
    }


def test_models_without_digests_are_refused():
    model = toy_model()

    with pytest.raises(ValueError, match="no digests.*digest=True"):
        compare_models(model, take_census(model, digest=False))


def test_a_model_where_a_census_belongs_is_refused():
    model = toy_model()

    with pytest.raises(ValueError, match="Sequential.*take_census"):
        compare(model, take_census(model))
