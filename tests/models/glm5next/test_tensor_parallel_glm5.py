# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The tiny GLM-5.x in two tensor-parallel processes."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.glm5_tiny import (
    Architecture,
    Experts,
    TinyGlm5,
    WeightFormat,
    differences,
    expected_parameters,
    load_from_disk,
    load_from_stream,
    make_checkpoint,
    reload_layerwise,
    run_tp2,
    tensors_of,
)
from tests.models.glm5next import projections

SPECS = [
    *(
        TinyGlm5(architecture, weight_format)
        for architecture in Architecture
        for weight_format in WeightFormat
    ),
    TinyGlm5(experts=Experts.BF16),
]


def spec_id(spec: TinyGlm5) -> str:
    return f"{spec.architecture}-{spec.weight_format}-{spec.experts}"


class Findings(NamedTuple):
    """What is wrong with the parameters of a rank."""

    cold_start_from_disk: dict[str, str]
    cold_start_from_stream: dict[str, str]
    reload: dict[str, str]
    reload_against_cold_start: dict[str, str]


class Rank(NamedTuple):
    """What a rank found.

    Attributes:
        number: Of the rank.
        findings: Of each model.
        projections: What is wrong with those of a model after a cold start or a reload
            of some kind, by what was sent.
    """

    number: int
    findings: dict[TinyGlm5, Findings]
    projections: dict[TinyGlm5, dict[str, str]]


def _examine(spec: TinyGlm5, folder: Path, rank: int) -> Findings:
    # The default loader collects garbage twice a load; spare it what is there by now.
    gc.freeze()
    first, second = make_checkpoint(spec, seed=0), make_checkpoint(spec, seed=1)
    holding_first = expected_parameters(spec, first, rank, tp_size=2)
    holding_second = expected_parameters(spec, second, rank, tp_size=2)

    fresh = load_from_stream(spec, folder, [second.weights]).module
    model = load_from_disk(spec, folder)
    from_disk = differences(model.module, holding_first)
    reload_layerwise(model, [second.weights])
    return Findings(
        from_disk,
        differences(fresh, holding_second),
        differences(model.module, holding_second),
        differences(model.module, tensors_of(fresh)),
    )


def _examine_projections(
    spec: TinyGlm5, folders: dict[TinyGlm5, Path], rank: int
) -> dict[str, str]:
    examiner = projections.Examiner(spec, folders.__getitem__, rank, tp_size=2)
    ordered = projections.ordered_updates(spec)
    mixed = projections.mixed_updates(spec)
    # In one call, models start in the other test of this module.
    cold = [update for update in ordered if update.each_alone]
    cold += [update for update in mixed if update.in_bf16]
    found = {f"cold {update}": examiner.cold_start(update) for update in cold}
    found |= examiner.reloads([*ordered, *mixed])
    return {case: wrong for case, wrong in found.items() if wrong}


def _examine_all(folders: dict[TinyGlm5, Path]) -> Rank:
    from vllm.distributed import get_tensor_model_parallel_rank

    rank = get_tensor_model_parallel_rank()
    found = {spec: _examine(spec, folder, rank) for spec, folder in folders.items()}
    wrong = {s: _examine_projections(s, folders, rank) for s in projections.SPECS}
    return Rank(rank, found, wrong)


@pytest.fixture(scope="module")
def ranks(checkpoint_folder: Callable[[TinyGlm5], Path]) -> list[Rank]:
    return run_tp2(_examine_all, {spec: checkpoint_folder(spec) for spec in SPECS})


def test_results_come_by_rank(ranks: list[Rank]):
    assert [rank.number for rank in ranks] == [0, 1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
def test_cold_start_and_reload_are_exact(ranks: list[Rank], spec: TinyGlm5, rank: int):
    assert ranks[rank].findings[spec] == Findings({}, {}, {}, {})


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("spec", projections.SPECS, ids=spec_id)
def test_projections_in_any_order_and_any_calls_are_exact(
    ranks: list[Rank], spec: TinyGlm5, rank: int
):
    assert ranks[rank].projections[spec] == {}
