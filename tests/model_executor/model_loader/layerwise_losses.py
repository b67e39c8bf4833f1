# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""How a layerwise reload can lose weights: one function for each way.

Each returns None if nothing was lost, or says what was. They run on stock vLLM, too.
"""

from collections.abc import Callable, Iterator, Mapping

import torch

from tests.model_executor.model_loader.layerwise_toys import (
    Folded,
    HookedModel,
    Identity,
    TiedModel,
    ToyLayer,
    ToyModel,
    Transposed,
    UndeclaredHookModel,
    Weights,
    abort_layerwise_reload,
    cold_start,
    contents,
    make_weights,
    reload,
    use_partial_loader,
)
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

OLD, NEW, OTHER = (make_weights(seed) for seed in range(3))


def _start(method: type[Identity], weights: Weights | None = OLD) -> ToyModel:
    return cold_start(ToyModel(ToyLayer(method())), weights)


def _without(weights: Weights, *names: str) -> Weights:
    return [(name, tensor) for name, tensor in weights if name not in names]


def _compare(model: torch.nn.Module, expected: Mapping[str, bytes]) -> str | None:
    found = contents(model)
    wrong = [name for name in expected if found[name] != expected[name]]
    return f"{', '.join(wrong)} have wrong contents" if wrong else None


def _refuses(
    model: ToyModel, calls: list[Weights], *said: str, unchanged: bool = True
) -> str | None:
    before = contents(model)
    try:
        reload(model, *calls)
    except RuntimeError as error:
        silent = [words for words in said if words not in str(error)]
        if silent:
            return f"the error does not say {silent}: {error}"
        return _compare(model, before) if unchanged else None
    return "nothing was raised"


def left_out_tensor_keeps_its_value() -> str | None:
    model = _start(Identity)
    reload(model, _without(NEW, "0.scale.0", "0.scale.1"))
    old_scales = [item for item in OLD if "scale" in item[0]]
    mixed = _without(NEW, "0.scale.0", "0.scale.1") + old_scales
    return _compare(model, contents(_start(Identity, mixed)))


def left_out_shard_of_a_transposed_weight_keeps_its_value() -> str | None:
    model = _start(Transposed)
    reload(model, _without(NEW, "0.weight.1"))
    mixed = _without(NEW, "0.weight.1") + [("0.weight.1", dict(OLD)["0.weight.1"])]
    return _compare(model, contents(_start(Transposed, mixed)))


def incomplete_layer_that_cannot_keep_its_values_is_refused() -> str | None:
    calls = [_without(NEW, "0.scale.1")]
    return _refuses(_start(Folded), calls, "0 misses scale[shard_id=1]")


def duplicate_does_not_count_for_another_tensor() -> str | None:
    calls = [[NEW[0], *_without(NEW, "0.weight.1")]]
    return _refuses(_start(Folded), calls, "0 misses weight[shard_id=1]")


def duplicate_overwrites() -> str | None:
    model = _start(Folded)
    reload(model, [OTHER[0], *NEW])
    return _compare(model, contents(_start(Folded, NEW)))


def duplicate_after_the_layer_was_complete_overwrites() -> str | None:
    model = _start(Transposed)
    reload(model, NEW, [OTHER[0]])
    mixed = [OTHER[0], *NEW[1:]]
    return _compare(model, contents(_start(Transposed, mixed)))


def duplicate_that_would_be_written_in_checkpoint_format_is_refused() -> str | None:
    calls = [NEW, [OTHER[0]]]
    said = "0.weight arrived after all tensors of its layer"
    return _refuses(_start(Folded), calls, said, unchanged=False)


def one_element_that_each_shard_loads_does_not_complete_the_layer() -> str | None:
    model = _start(Folded)
    reload(model, NEW)
    return _compare(model, contents(_start(Folded, NEW)))


def nor_does_it_after_a_start_with_dummy_weights() -> str | None:
    model = _start(Folded, None)
    reload(model, NEW)
    return _compare(model, contents(_start(Folded, NEW)))


def failed_reload_leaves_nothing_to_the_next() -> str | None:
    model = _start(Folded)
    broken = [*OTHER[:3], ("0.weight.no_number", OTHER[0][1])]
    try:
        reload(model, broken)
    except ValueError:
        reload(model, NEW)
    return _compare(model, contents(_start(Folded, NEW)))


def abandoned_model_does_not_start_again() -> str | None:
    model = _start(Folded)
    initialize_layerwise_reload(model)
    try:
        initialize_layerwise_reload(model)
    except RuntimeError as error:
        abort_layerwise_reload(model)
        assert "neither finished nor aborted" in str(error)
        return _compare(model, contents(_start(Folded)))
    return "a second start was accepted"


def memory_of_a_transport_is_not_kept() -> str | None:
    model = _start(Folded)
    bucket = torch.empty(64)

    def received() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in NEW:
            view = bucket[: tensor.numel()].view(tensor.shape)
            yield name, view.copy_(tensor)

    reload(model, received())
    return _compare(model, contents(_start(Folded, NEW)))


def padding_keeps_the_value_that_it_was_created_with() -> str | None:
    model = cold_start(ToyModel(ToyLayer(Folded(), padding=2)), OLD)
    fresh = cold_start(ToyModel(ToyLayer(Folded(), padding=2)), NEW)
    reload(model, NEW)
    return _compare(model, contents(fresh))


def loader_without_a_name_is_called() -> str | None:
    model = cold_start(ToyModel(use_partial_loader(ToyLayer(Folded()))), OLD)
    try:
        reload(model, NEW)
    except AttributeError as error:
        return str(error)
    return _compare(model, contents(_start(Folded, NEW)))


def hook_of_the_model_runs_once() -> str | None:
    model = cold_start(HookedModel(ToyLayer(Folded())), OLD)
    reload(model, NEW)
    fresh = cold_start(HookedModel(ToyLayer(Folded())), NEW)
    if model.calls != 2:
        return f"the hook ran {model.calls - 1} times"
    return None if torch.equal(model.total, fresh.total) else "the total is stale"


def undeclared_hook_is_refused() -> str | None:
    model = cold_start(UndeclaredHookModel(ToyLayer(Folded())), OLD)
    return _refuses(model, [NEW], "is not declared safe to run again")


def different_weights_of_tied_parameters_are_refused() -> str | None:
    model = TiedModel()
    weight = torch.zeros_like(model.embed_tokens.weight)
    cold_start(model, [("embed_tokens.weight", weight), ("lm_head.weight", weight)])
    model.lm_head.weight = model.embed_tokens.weight
    calls = [[("embed_tokens.weight", weight + 1), ("lm_head.weight", weight + 2)]]
    said = "embed_tokens.weight and lm_head.weight are tied"
    return _refuses(model, calls, said, unchanged=False)


LOSSES: dict[str, Callable[[], str | None]] = {
    function.__name__: function
    for function in (
        left_out_tensor_keeps_its_value,
        left_out_shard_of_a_transposed_weight_keeps_its_value,
        incomplete_layer_that_cannot_keep_its_values_is_refused,
        duplicate_does_not_count_for_another_tensor,
        duplicate_overwrites,
        duplicate_after_the_layer_was_complete_overwrites,
        duplicate_that_would_be_written_in_checkpoint_format_is_refused,
        one_element_that_each_shard_loads_does_not_complete_the_layer,
        nor_does_it_after_a_start_with_dummy_weights,
        failed_reload_leaves_nothing_to_the_next,
        abandoned_model_does_not_start_again,
        memory_of_a_transport_is_not_kept,
        padding_keeps_the_value_that_it_was_created_with,
        loader_without_a_name_is_called,
        hook_of_the_model_runs_once,
        undeclared_hook_is_refused,
        different_weights_of_tied_parameters_are_refused,
    )
}


def what_is_lost() -> dict[str, str | None]:
    """What each of them says; an error that it does not expect is a loss, too."""
    lost = {}
    for name, loses in LOSSES.items():
        try:
            lost[name] = loses()
        except (AttributeError, RuntimeError) as error:
            lost[name] = str(error)
    return lost
