# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A direct reload ends as a cold start does, and nothing has moved."""

import inspect
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.model_executor.model_loader.toy_reload_model import (
    METHODS,
    Identity,
    ToyReloadModel,
    Weights,
    cold_start,
    make_weights,
)
from vllm.model_executor.model_loader.reload import (
    abort_reload,
    finish_reload,
    record_metadata_for_reloading,
    require_defined,
    start_reload,
)
from vllm.model_executor.model_loader.reload.arrivals import place_of
from vllm.model_executor.model_loader.reload.audit import (
    Census,
    compare,
    compare_models,
    take_census,
)
from vllm.model_executor.model_loader.reload.first_load import (
    end_first_load,
    observe_first_load,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import to_meta_tensor
from vllm.model_executor.model_loader.reload.tensor_walk import walk_tensors
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

CONFIG: Any = SimpleNamespace(dtype=torch.float32)
PER_TENSOR = ("identity", "transposed")
FULL_UNIT = ("transformed", "shrinking", "growing", "released")
IN_PLACE = tuple(method for method in METHODS if method != "released")
Calls = list[list[tuple[str, torch.Tensor]]]


def _natural(names: list[str], rng: random.Random) -> list[list[str]]:
    return [names]


def _reverse(names: list[str], rng: random.Random) -> list[list[str]]:
    return [names[::-1]]


def _scales_first(names: list[str], rng: random.Random) -> list[list[str]]:
    return [sorted(names, key=lambda name: "scale" not in name)]


def _one_per_call(names: list[str], rng: random.Random) -> list[list[str]]:
    return [[name] for name in names]


def _random_split(names: list[str], rng: random.Random) -> list[list[str]]:
    names = rng.sample(names, len(names))
    cuts = sorted(rng.choices(range(len(names) + 1), k=rng.randrange(5)))
    return [
        names[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)
    ]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """On tensors this small, threads spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SPLITS = [_natural, _reverse, _scales_first, _one_per_call, _random_split]


def reload(model: ToyReloadModel, weights: Weights, calls: Iterable[Sequence[str]]):
    """Reloads a model directly; the tensors it is handed are overwritten after."""
    start_reload(model, "direct")
    try:
        for names in calls:
            bucket = [(name, weights[name].clone()) for name in names]
            model.load_weights(bucket)
            for _, tensor in bucket:
                tensor.fill_(float("nan"))
        finish_reload(model, CONFIG)
    except BaseException:
        abort_reload(model)
        raise


def assert_as_cold(model: ToyReloadModel, weights: Weights) -> None:
    warm, cold = take_census(model), take_census(cold_start(weights))
    report = compare_models(warm, cold)
    assert report.ok, report.to_table()


def differing(model: ToyReloadModel, weights: Weights) -> list[str]:
    """Tensors that differ from a cold start's, faster than by a census."""
    cold = {found.name: found.tensor for found in walk_tensors(cold_start(weights))}
    return [
        found.name
        for found in walk_tensors(model)
        if not torch.equal(found.tensor, cold[found.name])
    ]


def assert_unmoved(before: Census, model: ToyReloadModel) -> None:
    report = compare(before, take_census(model))
    moved = [finding for finding in report.findings if finding.kind != "changed"]
    # What is released lies in memory that no graph reads.
    moved = [f for f in moved if not f.name.startswith("released.packed")]
    assert not moved, moved


@pytest.mark.parametrize("split", SPLITS)
def test_three_reloads_each_end_as_a_cold_start(split: Callable):
    model = cold_start(make_weights(0))
    before = take_census(model)

    for seed in (1, 2, 3):
        weights = make_weights(seed)
        reload(model, weights, split(list(weights), random.Random(seed)))

        assert_unmoved(before, model)
        assert_as_cold(model, weights)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("left_out", [*METHODS, "norm"])
def test_a_layer_that_is_left_out_keeps_its_bytes(left_out: str, split: Callable):
    first, second = make_weights(0), make_weights(1)
    model = cold_start(first)
    before = take_census(model)
    sent = [name for name in second if not name.startswith(left_out)]

    reload(model, second, split(sent, random.Random(0)))

    assert_unmoved(before, model)
    assert_as_cold(
        model, {name: (second if name in sent else first)[name] for name in first}
    )
    untouched = [r for r in before.records if r.name.startswith(f"{left_out}.")]
    after = take_census(model).by_name
    assert untouched
    assert all(after[record.name].digest == record.digest for record in untouched)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("tensor", ["weight.0", "weight.1", "scale.0", "scale.1"])
@pytest.mark.parametrize("method", PER_TENSOR)
def test_a_tensor_that_is_left_out_keeps_its_value(
    method: str, tensor: str, split: Callable
):
    first, second = make_weights(0), make_weights(1)
    model = cold_start(first)
    before = take_census(model)
    sent = [name for name in second if name != f"{method}.{tensor}"]

    reload(model, second, split(sent, random.Random(0)))

    assert_unmoved(before, model)
    assert_as_cold(
        model, {name: (second if name in sent else first)[name] for name in first}
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("tensor", ["weight.0", "weight.1", "scale.0", "scale.1"])
@pytest.mark.parametrize("method", FULL_UNIT)
def test_a_layer_that_misses_a_tensor_is_refused_by_name(
    method: str, tensor: str, split: Callable
):
    second = make_weights(1)
    model = cold_start(make_weights(0))
    before = take_census(model)
    sent = [name for name in second if name != f"{method}.{tensor}"]
    name, _, shard = tensor.partition(".")

    with pytest.raises(
        RuntimeError, match=rf"{method} misses {name}\[shard_id={shard}"
    ):
        reload(model, second, split(sent, random.Random(0)))

    assert_unmoved(before, model)
    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    third = make_weights(2)
    reload(model, third, [list(third)])
    require_defined(model)
    assert_unmoved(before, model)
    assert_as_cold(model, third)


def test_random_schedules_end_as_a_cold_start():
    """2,000 reloads of one model, over random parts, splits and repetitions."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    held = make_weights(0)
    model = cold_start(held)
    before = take_census(model)
    for number in range(2000):
        new = make_weights(rng.randrange(2**31))
        sent = [
            name
            for name in new
            if (method := name.partition(".")[0])
            and (rng.random() < 0.7 if method in (*PER_TENSOR, "norm") else True)
        ]
        skipped = set(rng.sample(FULL_UNIT, rng.randrange(3)))
        sent = [name for name in sent if name.partition(".")[0] not in skipped]
        repeated = rng.sample(sent, rng.randrange(min(4, len(sent) + 1)))
        calls = _random_split([*sent, *repeated], rng)

        reload(model, new, calls)

        held |= {name: new[name] for name in sent}
        assert not differing(model, held), number
    assert_unmoved(before, model)
    assert_as_cold(model, held)


def test_released_storage_gets_scratch_that_is_not_kept(
    caplog: pytest.LogCaptureFixture,
):
    model = cold_start(make_weights(0))
    before = take_census(model).device_bytes

    second = make_weights(1)
    reload(model, second, [list(second)])

    assert take_census(model).device_bytes == before


def test_a_model_without_a_first_load_is_complete_when_all_elements_came():
    weights = make_weights(1)
    model = cold_start(None)

    reload(model, weights, [list(weights)])

    assert_as_cold(model, weights)


def test_a_model_without_a_first_load_misses_what_did_not_come():
    weights = make_weights(1)
    model = cold_start(None)
    sent = [name for name in weights if name != "growing.weight.1"]

    with pytest.raises(RuntimeError, match=r"growing misses weight \(24 of 48"):
        reload(model, weights, [sent])


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match="unknown reload mode 'sideways'"):
        start_reload(cold_start(make_weights(0)), "sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["direct", "layerwise"])
def test_a_second_start_is_rejected(mode: Any):
    model = cold_start(make_weights(0))
    start_reload(model, "direct")

    with pytest.raises(RuntimeError, match="already in progress"):
        start_reload(model, mode)

    abort_reload(model)


def test_finish_without_start_is_rejected():
    with pytest.raises(RuntimeError, match="no reload"):
        finish_reload(cold_start(make_weights(0)), CONFIG)


def test_abort_without_start_does_nothing():
    model = cold_start(make_weights(0))
    before = take_census(model)

    abort_reload(model)

    assert compare(before, take_census(model)).ok


def test_abort_before_anything_was_loaded_leaves_the_model_as_it_was():
    model = cold_start(make_weights(0))
    before = take_census(model)
    start_reload(model, "direct")

    abort_reload(model)

    assert compare(before, take_census(model)).ok
    require_defined(model)


def test_a_refused_start_names_every_reason_and_changes_nothing():
    class Once(Identity):
        supports_direct_reload = False

    model = cold_start(make_weights(0))
    model.identity.quant_method = Once()
    model.transposed.weight._vllm_is_uva_offloaded = True
    before = take_census(model)

    with pytest.raises(RuntimeError) as error:
        start_reload(model, "direct")

    assert "identity: Once cannot process its weights again" in str(error.value)
    assert "transposed.weight is offloaded" in str(error.value)
    assert compare(before, take_census(model)).ok
    require_defined(model)


def test_two_parameters_in_one_storage_are_refused():
    model = cold_start(make_weights(0))
    model.identity.weight.data = model.transformed.weight.data

    with pytest.raises(RuntimeError, match="lies in the storage of"):
        start_reload(model, "direct")


@pytest.mark.parametrize("fail_at", range(1, 26))
def test_an_error_in_a_loader_is_mended_by_a_complete_reload(fail_at: int):
    model = cold_start(make_weights(0))
    before = take_census(model)
    weights = make_weights(1)
    names = list(weights)
    start_reload(model, "direct")

    for name in names[:fail_at]:
        model.load_weights([(name, weights[name])])
    with pytest.raises(AssertionError):
        model.load_weights([(names[0], torch.ones(1, 1))])
    abort_reload(model)

    assert_unmoved(before, model)
    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    reload(model, weights, [names])
    require_defined(model)
    assert_unmoved(before, model)
    assert_as_cold(model, weights)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_in_processing_is_mended_by_a_complete_reload(
    method: str, when: str, monkeypatch: pytest.MonkeyPatch
):
    model = cold_start(make_weights(0))
    before = take_census(model)
    weights = make_weights(1)
    quant_method = getattr(model, method).quant_method
    process = quant_method.process_weights_after_loading

    def fail(layer: torch.nn.Module) -> None:
        if when == "after":
            process(layer)
        raise OSError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(quant_method, "process_weights_after_loading", fail)
        with pytest.raises(OSError, match="injected"):
            reload(model, weights, [list(weights)])

    assert_unmoved(before, model)
    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    reload(model, weights, [list(weights)])
    assert_unmoved(before, model)
    assert_as_cold(model, weights)


def test_a_failed_reload_is_not_mended_by_a_partial_one():
    weights = make_weights(1)
    model = cold_start(make_weights(0))
    start_reload(model, "direct")
    model.load_weights([("identity.weight.0", weights["identity.weight.0"])])
    abort_reload(model)

    with pytest.raises(RuntimeError, match="identity, undefined since a failed reload"):
        reload(model, weights, [["identity.weight.1", "norm.weight"]])

    reload(model, weights, [list(weights)])
    require_defined(model)


def test_a_tensor_that_moves_is_found_at_finish(monkeypatch: pytest.MonkeyPatch):
    model = cold_start(make_weights(0))
    model.identity.quant_method.strides = torch.ones(2)
    process = model.identity.quant_method.process_weights_after_loading

    def move(layer: torch.nn.Module) -> None:
        process(layer)
        layer.quant_method.strides = torch.ones(2)

    monkeypatch.setattr(
        model.identity.quant_method, "process_weights_after_loading", move
    )
    weights = make_weights(1)

    with pytest.raises(RuntimeError, match="identity.quant_method.strides"):
        reload(model, weights, [list(weights)])


class TiedModel(torch.nn.Module):
    """A head on the embeddings' weight, loaded under both names before it was tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 2)
        self.head = torch.nn.Linear(2, 4, bias=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            param = getattr(self, name).weight
            getattr(param, "weight_loader", default_weight_loader)(param, tensor)


def _tied_model() -> TiedModel:
    model = TiedModel().requires_grad_(False)
    record_metadata_for_reloading(model)
    observe_first_load(model)
    model.load_weights([("embed", torch.ones(4, 2)), ("head", torch.ones(4, 2))])
    end_first_load(model)
    model.head.weight = model.embed.weight
    return model


@pytest.mark.parametrize("difference", [0.0, 1.0])
def test_a_tied_parameter_takes_one_weight_only(difference: float):
    model = _tied_model()
    start_reload(model, "direct")
    new = torch.full((4, 2), 2.0)
    model.load_weights([("embed", new), ("head", new + difference)])

    if difference:
        with pytest.raises(RuntimeError, match="embed.weight and head.weight were"):
            finish_reload(model, CONFIG)
    else:
        finish_reload(model, CONFIG)
        assert torch.equal(model.head.weight, new)


def test_a_write_past_the_parameters_own_loader_counts():
    model = cold_start(make_weights(0))
    start_reload(model, "direct")
    default_weight_loader(model.transformed.weight, torch.ones(8, 6))

    with pytest.raises(RuntimeError, match="transformed misses"):
        finish_reload(model, CONFIG)


def test_zeros_do_not_stand_for_what_was_not_loaded():
    weights = make_weights(1)
    model = cold_start(None)
    info = get_layerwise_info(model.growing)
    info.creation_values["weight"] = torch.tensor(0.0)
    sent = [name for name in weights if not name.startswith("growing.weight")]

    with pytest.raises(RuntimeError, match="growing misses weight"):
        reload(model, weights, [sent])


def test_shards_are_told_apart_whatever_a_loader_s_signature():
    def loader(param: torch.Tensor, loaded_weight: torch.Tensor, *args, **kwargs):
        pass

    signature = inspect.signature(loader)
    weight = torch.ones(1)
    places = {
        place_of(signature.bind(weight, weight, *args, **kwargs))
        for args, kwargs in [((0,), {}), ((1,), {}), ((), {"shard_id": 0}), ((), {})]
    }

    assert len(places) == 4


def test_plain_tensors_are_back_after_an_error(monkeypatch: pytest.MonkeyPatch):
    model = cold_start(make_weights(0))
    before = take_census(model)
    weights = make_weights(1)
    quant_method = model.released.quant_method
    process = quant_method.process_weights_after_loading

    def fail(layer: torch.nn.Module) -> None:
        process(layer)
        raise OSError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(quant_method, "process_weights_after_loading", fail)
        with pytest.raises(OSError, match="injected"):
            reload(model, weights, [list(weights)])
    reload(model, weights, [list(weights)])

    found = compare(before, take_census(model)).findings
    assert {finding.kind for finding in found} == {"changed"}


def test_an_address_that_an_error_moved_is_still_found():
    model = cold_start(make_weights(0))
    weights = make_weights(1)
    method: Any = model.identity.quant_method
    method.strides = torch.ones(2)
    start_reload(model, "direct")
    model.load_weights(weights.items())
    method.strides = torch.ones(2)
    with pytest.raises(RuntimeError, match="did not stay in place"):
        finish_reload(model, CONFIG)

    with pytest.raises(RuntimeError, match="identity.quant_method.strides"):
        reload(model, weights, [list(weights)])


def test_an_empty_parameter_hides_nothing(monkeypatch: pytest.MonkeyPatch):
    model = cold_start(make_weights(0))
    empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    model.identity.register_parameter("empty", empty)
    info = get_layerwise_info(model.identity)
    info.restore_metadata[0]["empty"] = to_meta_tensor(empty)
    info.loaded_names = (*(info.loaded_names or ()), "empty")
    model.identity.strides = torch.ones(2)
    process = model.identity.quant_method.process_weights_after_loading

    def move(layer: torch.nn.Module) -> None:
        process(layer)
        layer.strides = torch.ones(3)

    monkeypatch.setattr(
        model.identity.quant_method, "process_weights_after_loading", move
    )
    weights = make_weights(1)

    with pytest.raises(RuntimeError, match="identity.strides"):
        reload(model, weights, [list(weights)])


def test_models_that_share_a_layer_are_reloaded_one_after_the_other():
    target, draft = cold_start(make_weights(0)), cold_start(make_weights(0))
    draft.norm = target.norm
    start_reload(target, "direct")

    with pytest.raises(RuntimeError, match="shares layers"):
        start_reload(draft, "direct")

    abort_reload(target)


def test_scratch_is_freed_by_an_abort():
    model = cold_start(make_weights(0))
    weights = make_weights(1)
    start_reload(model, "direct")
    model.load_weights([("released.weight.0", weights["released.weight.0"])])
    scratch = weakref.ref(model.released.weight.data.untyped_storage())
    assert scratch() is not None

    abort_reload(model)

    assert scratch() is None
