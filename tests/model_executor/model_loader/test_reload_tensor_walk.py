# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which tensors of a model are found, and what they are called."""

import functools
import types
import weakref
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from vllm.config import CompilationConfig
from vllm.model_executor.model_loader.reload.tensor_walk import (
    MAX_MODULE_NAMES,
    walk_tensors,
)


def tensor() -> torch.Tensor:
    return torch.zeros(2)


def parameter() -> Any:
    return torch.nn.Parameter(tensor(), requires_grad=False)


def module(**attributes: Any) -> Any:
    made = torch.nn.Module()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def names(model: torch.nn.Module) -> list[str]:
    return [found.name for found in walk_tensors(model)]


def kinds(model: torch.nn.Module) -> dict[str, str]:
    return {found.name: found.kind for found in walk_tensors(model)}


class Pair(NamedTuple):
    left: torch.Tensor
    right: object = None


@dataclass(slots=True)
class Slotted:
    held: torch.Tensor
    other: object = None


class PrivateSlot:
    __slots__ = ("__held", "never_set")

    def __init__(self) -> None:
        self.__held = tensor()


class Plain:
    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)

    def use(self) -> None: ...


def closure_over(value: object):
    def closed():
        return value

    return closed


def with_default(value: torch.Tensor):
    def function(first=value, *, second=value.clone()):  # noqa: B008
        return first, second

    return function


HOLDERS = {
    "tensor": (tensor, ["x"]),
    "list": (lambda: [1, tensor()], ["x[1]"]),
    "nested": (lambda: [(tensor(),)], ["x[0][0]"]),
    "named tuple": (lambda: Pair(tensor()), ["x.left"]),
    "dict": (lambda: {"a.b": tensor(), 3: tensor()}, ["x['a.b']", "x[3]"]),
    "ordered dict": (lambda: OrderedDict(a=tensor()), ["x['a']"]),
    "user dict": (lambda: UserDict(a=tensor()), ["x.data['a']"]),
    "read-only dict": (lambda: types.MappingProxyType({"a": tensor()}), ["x['a']"]),
    "key without text": (lambda: {object(): tensor()}, ["x[<object 0>]"]),
    "set": (lambda: {tensor()}, ["x{0}"]),
    "deque": (lambda: deque([tensor()]), ["x[0]"]),
    "object": (lambda: Plain(a=Plain(b=tensor())), ["x.a.b"]),
    "slots": (lambda: Slotted(tensor()), ["x.held"]),
    "private slot": (PrivateSlot, ["x._PrivateSlot__held"]),
    "closure": (lambda: closure_over([tensor()]), ["x.value[0]"]),
    "default": (
        lambda: with_default(tensor()),
        ["x.__defaults__[0]", "x.__kwdefaults__['second']"],
    ),
    "partial": (
        lambda: functools.partial(dict, tensor(), key=tensor()),
        ["x.args[0]", "x.keywords['key']"],
    ),
    "bound method": (lambda: Plain(a=tensor()).use, ["x.__self__.a"]),
    "method of a tensor": (lambda: tensor().copy_, ["x.__self__"]),
    "unregistered module": (lambda: [torch.nn.LayerNorm(2)], ["x[0].weight"]),
}


@pytest.mark.parametrize("make, expected", HOLDERS.values(), ids=HOLDERS)
def test_tensors_are_found_wherever_a_module_holds_them(make, expected):
    found = names(module(x=make()))

    assert found[: len(expected)] == expected


def test_kinds_tell_registered_attribute_and_off_tree_tensors_apart():
    model = module(p=parameter(), a=tensor(), l=[tensor()], o=Plain(t=tensor()))
    model.register_buffer("b", tensor())

    assert kinds(model) == {
        "p": "parameter",
        "b": "buffer",
        "a": "attribute",
        "l[0]": "attribute",
        "o.t": "off-tree",
    }


def test_a_tensor_has_all_of_its_names():
    shared = parameter()
    model = module(first=module(w=shared), second=module(w=shared), o=Plain(t=shared))

    found = walk_tensors(model)

    assert [f.name for f in found] == ["first.w", "second.w", "o.t"]
    assert all(f.tensor is shared for f in found)


def test_a_shared_module_gives_its_tensors_each_of_its_names():
    inner = module(w=parameter())
    model = module(layers=module(a=inner), active=module(b=inner), again=inner)

    assert names(model) == ["layers.a.w", "active.b.w", "again.w"]


def test_first_names_are_those_of_named_parameters():
    inner = module(w=parameter())
    model = module(z=module(inner=inner), a=inner)

    assert names(model)[0] == next(name for name, _ in model.named_parameters())


def test_references_to_registered_modules_give_no_further_names():
    layer = module(w=parameter())
    model = module(layer=layer, refs=[layer], kernel=Plain(layer=layer))
    layer.parent = [model]

    assert names(model) == ["layer.w"]


def test_cycles_end():
    ring: Any = Plain(t=tensor())
    ring.ring = {"self": ring, "list": []}
    ring.ring["list"].append(ring.ring)
    model = module(ring=ring)
    model._modules["me"] = model

    assert names(model) == ["ring.t"]


def test_exponentially_many_names_are_cut_short():
    model = leaf = torch.nn.Module()
    for _ in range(30):
        child = torch.nn.Module()
        leaf.left = leaf.right = child
        leaf = child
    leaf.w = parameter()

    assert len(names(model)) == MAX_MODULE_NAMES


def test_a_shared_object_goes_by_its_shortest_path():
    config = Plain(scale=tensor())
    layers = module(first=module(config=config))
    model = module(layers=layers, z_kernel=Plain(config=config))

    assert names(model) == ["z_kernel.config.scale"]


def test_names_do_not_depend_on_the_order_of_assignment():
    config, twice = Plain(scale=tensor()), tensor()
    model = module(a=config, b=Plain(c=config), t=twice, u=twice)
    before = names(model)

    for name in ("a", "t"):
        value = getattr(model, name)
        delattr(model, name)
        setattr(model, name, value)

    assert names(model) == before


def test_tensors_that_share_a_path_are_all_found():
    model = module(w=parameter())
    vars(model)["w"] = tensor()

    assert kinds(model) == {"w": "parameter", "w#2": "attribute"}


def test_hooks_are_named_by_position():
    model = module()
    model.register_forward_hook(closure_over(None))
    model.register_forward_hook(closure_over(tensor()))

    assert names(model) == ["_forward_hooks[1].value"]


def test_attributes_of_a_parameter_are_found():
    weight = parameter()
    weight.scales = [tensor()]

    assert names(module(w=weight)) == ["w", "w.scales[0]"]


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial, closure_over])
def test_a_weight_loader_does_not_lead_into_another_model(wrap):
    other = torch.nn.Linear(2, 2)
    weight = parameter()
    weight.weight_loader = wrap(other.forward)

    assert names(module(w=weight)) == ["w"]


def test_a_tensor_in_the_closure_of_a_weight_loader_is_found():
    weight = parameter()
    weight.weight_loader = closure_over(tensor())

    assert names(module(w=weight)) == ["w", "w.weight_loader.value"]


def test_configuration_and_process_state_are_not_entered():
    config = CompilationConfig()
    config.static_forward_context["layer"] = module(w=parameter())
    model = module(config=config, torch=torch, cls=torch.nn.Linear)
    model.weak = weakref.ref(parameter())

    assert names(model) == []


def test_no_property_is_run():
    class Trap:
        @property
        def value(self):
            raise AssertionError("a property was run")

        def __getattr__(self, name):
            raise AssertionError(f"{name} was looked up")

    assert names(module(trap=[Trap()], t=tensor())) == ["t"]


def test_inner_tensors_of_a_wrapper_subclass_are_found():
    jagged = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    )

    found = names(module(x=jagged))

    assert found[0] == "x"
    assert {"x._values", "x._offsets"} < set(found)
