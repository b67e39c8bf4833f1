# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What happens to a layer's parameters in post-load processing."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from vllm.model_executor.layers.quantization.utils import layer_utils
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.utils import (
    get_live_param,
    keep_constants,
    kernel_parameters,
    move_parameter,
    refill_derived,
    replace_parameter,
    retire_parameter,
)


def _layer(**attributes: object) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    for name, value in attributes.items():
        setattr(layer.weight, name, value)
    return layer


@pytest.mark.parametrize(
    "new",
    [torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 3, dtype=torch.int8)],
    ids=["same layout", "other shape", "other dtype"],
)
def test_replace_parameter_returns_the_parameter_it_kept(new: torch.Tensor):
    layer = _layer()
    kept = layer.weight

    assert replace_parameter(layer, "weight", new) is kept
    assert layer.weight is kept
    assert torch.equal(kept, new)


def test_replace_parameter_returns_the_parameter_it_registered():
    layer = torch.nn.Module()

    returned = replace_parameter(layer, "weight", torch.ones(2, 3))

    assert returned is layer.weight
    assert dict(layer.named_parameters())["weight"] is returned


def test_replace_parameter_returns_what_took_an_online_source_s_place():
    layer = _layer(requantization_source=True)
    source = layer.weight

    returned = replace_parameter(layer, "weight", torch.ones(2, 3))

    assert returned is layer.weight
    assert returned is not source


def test_replace_parameter_returns_none_for_a_parameter_set_to_none():
    layer = _layer()

    assert replace_parameter(layer, "weight", None) is None
    assert layer.weight is None


def test_replace_parameter_copies_a_smaller_result_into_the_storage():
    layer = _layer()
    storage = layer.weight.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    new = torch.arange(4, dtype=torch.float16).view(2, 2).t()

    replace_parameter(layer, "weight", new)

    assert torch.equal(layer.weight, new)
    assert layer.weight.stride() == new.stride()
    assert layer.weight.untyped_storage().data_ptr() == address
    assert layer.weight.untyped_storage().nbytes() == size


def test_replace_parameter_grows_back_within_the_storage():
    layer = _layer()
    address = layer.weight.data_ptr()

    replace_parameter(layer, "weight", torch.ones(1))
    replace_parameter(layer, "weight", torch.full((3, 2), 2.0))

    assert torch.equal(layer.weight, torch.full((3, 2), 2.0))
    assert layer.weight.data_ptr() == address


def test_replace_parameter_rebinds_to_a_larger_result():
    layer = _layer()
    new = torch.ones(4, 3)

    kept = replace_parameter(layer, "weight", new)

    assert kept is layer.weight
    assert kept.data_ptr() == new.data_ptr()


def test_replace_parameter_rebinds_to_a_view_of_the_own_storage():
    layer = _layer()
    layer.weight.data.copy_(torch.arange(6).view(2, 3))
    view = layer.weight.data[:, 1:]
    expected = view.clone()

    replace_parameter(layer, "weight", view)

    assert torch.equal(layer.weight, expected)
    assert layer.weight.data_ptr() == view.data_ptr()


def test_replace_parameter_rebinds_to_a_view_of_the_same_layout():
    layer = _layer()
    overlapping = layer.weight.data.view(-1)[:3]
    replace_parameter(layer, "weight", overlapping)
    shifted = overlapping.as_strided((3,), (1,), 1)

    replace_parameter(layer, "weight", shifted)

    assert layer.weight.data_ptr() == shifted.data_ptr()


def test_replace_parameter_takes_a_result_whose_elements_share_memory():
    layer = _layer()
    address = layer.weight.data_ptr()

    replace_parameter(layer, "weight", torch.tensor(3.0).expand(5))

    assert torch.equal(layer.weight, torch.full((5,), 3.0))
    assert layer.weight.data_ptr() == address


def test_replace_parameter_leaves_a_storage_that_another_name_is_on():
    layer = _layer()
    tied = torch.nn.Parameter(layer.weight.data, requires_grad=False)
    layer.tied = tied

    replace_parameter(layer, "weight", torch.ones(2))

    assert torch.equal(layer.weight, torch.ones(2))
    assert torch.equal(tied, torch.zeros(2, 3))


def test_replace_parameter_leaves_what_lies_before_the_parameter():
    fused = torch.zeros(4, 3)
    layer = _layer()
    layer.weight.data = fused[2:]

    replace_parameter(layer, "weight", torch.ones(2))

    assert torch.equal(fused, torch.zeros(4, 3))


def test_replace_parameter_leaves_the_source_of_an_online_method():
    class Online:
        uses_meta_device = True

    layer = _layer()
    layer.quant_method = Online()
    layer.quant_method.uses_meta_device = False
    source = layer.weight.data

    replace_parameter(layer, "weight", torch.ones(2))

    assert torch.equal(source, torch.zeros(2, 3))


def test_replace_parameter_of_the_layer_utilities_keeps_the_one_rule():
    layer = _layer()
    address = layer.weight.data_ptr()

    layer_utils.replace_parameter(layer, "weight", torch.ones(2, dtype=torch.int8))

    assert layer.weight.shape == (2,)
    assert layer.weight.data_ptr() == address


def test_replace_parameter_under_either_name_changes_one_object():
    layer = _layer()
    param = move_parameter(layer, "weight", "runtime")

    replace_parameter(layer, "weight", torch.ones(2))
    replace_parameter(layer, "runtime", torch.full((2,), 2.0))

    assert layer.weight is layer.runtime is param
    assert torch.equal(param, torch.full((2,), 2.0))


def test_a_new_object_takes_both_names():
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.empty(2, device="meta"))
    move_parameter(layer, "weight", "runtime")

    new = replace_parameter(layer, "runtime", torch.ones(2))

    assert layer.weight is layer.runtime is new


def test_a_replaced_parameter_is_live_again():
    layer = _layer()
    retire_parameter(layer, "weight")

    replace_parameter(layer, "weight", torch.ones(1))

    assert get_live_param(layer, "weight") is layer.weight


def test_what_became_of_a_parameter_is_not_passed_on_to_another():
    layer = _layer()
    layer.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    move_parameter(layer, "scale", "runtime_scale")
    retire_parameter(layer, "scale")

    replace_parameter(layer, "weight", layer.scale)

    assert kernel_parameters(layer) == {"weight": layer.weight}


def test_a_moved_parameter_is_found_under_its_checkpoint_name():
    layer = _layer()
    layer.register_parameter("packed", layer._parameters.pop("weight"))

    param = move_parameter(layer, "packed", "weight")

    assert layer.packed is layer.weight is param
    assert dict(layer.named_parameters()) == {"packed": param}
    assert kernel_parameters(layer) == {"weight": param}


def test_a_moved_parameter_comes_after_a_placeholder_of_its_runtime_name():
    layer = torch.nn.Module()
    layer.register_parameter("runtime", None)
    layer.weight = torch.nn.Parameter(torch.ones(2))

    move_parameter(layer, "weight", "runtime")

    assert list(dict(layer.named_parameters())) == ["weight"]


def test_moving_twice_changes_nothing():
    layer = _layer()
    move_parameter(layer, "weight", "runtime")

    move_parameter(layer, "weight", "runtime")

    assert list(layer._parameters) == ["weight", "runtime"]
    assert list(kernel_parameters(layer)) == ["runtime"]


def test_the_last_move_decides_the_runtime_name():
    layer = _layer()
    move_parameter(layer, "weight", "runtime")

    move_parameter(layer, "runtime", "weight")

    assert list(dict(layer.named_parameters())) == ["weight"]
    assert list(kernel_parameters(layer)) == ["weight"]


def test_moving_onto_another_parameter_is_refused():
    layer = _layer()
    layer.other = torch.nn.Parameter(torch.ones(1))

    with pytest.raises(ValueError, match="already has another 'other'"):
        move_parameter(layer, "weight", "other")


@pytest.mark.parametrize(
    "call",
    [
        lambda layer: move_parameter(layer, "absent", "runtime"),
        lambda layer: retire_parameter(layer, "absent"),
    ],
    ids=["move", "retire"],
)
def test_an_absent_parameter_is_refused(call: Callable[[torch.nn.Module], None]):
    with pytest.raises(ValueError, match="no parameter 'absent'; it has: weight"):
        call(_layer())


def test_an_absent_parameter_may_be_missing_when_retired():
    layer = _layer()
    layer.register_parameter("zero_point", None)

    retire_parameter(layer, "zero_point", missing_ok=True)
    retire_parameter(layer, "absent", missing_ok=True)

    assert list(layer._parameters) == ["weight", "zero_point"]
    assert not hasattr(layer, "absent")


def test_a_retired_parameter_is_kept_for_loaders_and_absent_for_kernels():
    layer = _layer()
    param = layer.weight

    retire_parameter(layer, "weight")
    retire_parameter(layer, "weight")

    assert dict(layer.named_parameters()) == {"weight": param}
    assert torch.equal(param, torch.zeros(2, 3))
    assert get_live_param(layer, "weight") is None
    assert kernel_parameters(layer) == {}


def test_a_retired_parameter_that_is_loaded_again_stays_retired():
    layer = _layer()
    retire_parameter(layer, "weight")

    default_weight_loader(layer.weight, torch.ones(2, 3))

    assert get_live_param(layer, "weight") is None
    assert torch.equal(layer.weight, torch.ones(2, 3))


@pytest.mark.parametrize("value", [None, torch.empty(0)], ids=["None", "empty"])
def test_what_is_not_there_is_not_live(value: torch.Tensor | None):
    layer = torch.nn.Module()
    layer.scale = value
    default = torch.ones(1)

    assert get_live_param(layer, "scale") is None
    assert get_live_param(layer, "scale", default) is default
    assert get_live_param(layer, "absent", default) is default


def test_buffers_and_plain_attributes_are_live():
    layer = torch.nn.Module()
    layer.register_buffer("buffer", torch.ones(1))
    layer.plain = torch.ones(1)

    assert get_live_param(layer, "buffer") is layer.buffer
    assert get_live_param(layer, "plain") is layer.plain


class Holder:
    """Holds tensors as plain attributes."""


def test_the_first_derived_tensor_is_held_as_it_is():
    holder, tensor = Holder(), torch.ones(3)

    assert refill_derived(holder, "scale", tensor) is holder.scale
    assert holder.scale.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("kind", ["attribute", "buffer", "parameter"])
def test_a_derived_tensor_is_refilled_where_it_is_held(kind: str):
    layer = torch.nn.Module()
    held = torch.ones(3)
    if kind == "buffer":
        layer.register_buffer("scale", held)
    elif kind == "parameter":
        layer.register_parameter("scale", torch.nn.Parameter(held))
    else:
        layer.scale = held
    before = layer.scale

    returned = refill_derived(layer, "scale", torch.nn.Parameter(torch.arange(3.0)))

    assert returned is layer.scale is before
    assert layer.scale.data_ptr() == held.data_ptr()
    assert held.tolist() == [0, 1, 2]
    assert ("scale" in layer._parameters) == (kind == "parameter")


@pytest.mark.parametrize(
    "new", [torch.ones(4), torch.ones(3, dtype=torch.int32)], ids=["shape", "dtype"]
)
def test_a_derived_tensor_of_another_layout_replaces_the_held_one(new: torch.Tensor):
    holder = Holder()
    refill_derived(holder, "scale", torch.zeros(3))

    assert refill_derived(holder, "scale", new) is holder.scale
    assert holder.scale.data_ptr() == new.data_ptr()


def test_a_parameter_of_another_layout_stays_the_same_object():
    layer = torch.nn.Module()
    layer.scale = param = torch.nn.Parameter(torch.zeros(3))

    assert refill_derived(layer, "scale", torch.ones(4)) is param
    assert param.tolist() == [1, 1, 1, 1]


def test_a_meta_tensor_leaves_the_held_one():
    holder = Holder()
    held = refill_derived(holder, "scale", torch.ones(3))

    assert refill_derived(holder, "scale", torch.ones(3, device="meta")) is held
    assert refill_derived(holder, "scale", torch.ones(9, device="meta")) is held


def test_a_held_meta_tensor_is_replaced():
    holder = Holder()
    refill_derived(holder, "scale", torch.ones(3, device="meta"))

    assert not refill_derived(holder, "scale", torch.ones(3)).is_meta


def test_a_source_that_overlaps_the_held_tensor_is_read_first():
    holder = Holder()
    storage = torch.arange(6.0)
    refill_derived(holder, "scale", storage[:4])

    refill_derived(holder, "scale", storage[1:5])
    refill_derived(holder, "scale", storage[:4].flip(0))

    assert holder.scale.data_ptr() == storage.data_ptr()
    assert holder.scale.tolist() == [4, 3, 2, 1]


def test_what_is_not_a_tensor_is_not_refilled():
    holder = Holder()
    holder.scale = 1.0

    with pytest.raises(ValueError, match="'scale' of Holder: it holds a float"):
        refill_derived(holder, "scale", torch.ones(1))


class Strides:
    kept_constants = ("strides", "absent")


class Experts(Strides):
    kept_constants = ("alpha", "beta")

    def __init__(self, value: float):
        self.strides = torch.full((2,), value)
        self.alpha = torch.full((3,), value)
        self.beta = None
        self.other = torch.full((3,), value)


def test_constants_of_rebuilt_experts_stay_at_their_first_addresses():
    layer = torch.nn.Module()
    layer.alpha = torch.nn.Parameter(torch.zeros(1))
    first, second = Experts(1.0), Experts(2.0)
    keep_constants(layer, first)

    keep_constants(layer, second)

    assert second.alpha is first.alpha
    assert second.strides is first.strides
    assert second.alpha.tolist() == [2, 2, 2]
    assert second.beta is None
    assert second.other is not first.other
    assert layer.alpha.tolist() == [0]


def test_refill_derived_writes_to_a_tensor_of_a_forward_pass():
    holder = SimpleNamespace()
    with torch.inference_mode():
        held = refill_derived(holder, "derived", torch.zeros(2))

    refill_derived(holder, "derived", torch.ones(2))

    assert holder.derived is held
    assert held.tolist() == [1, 1]
