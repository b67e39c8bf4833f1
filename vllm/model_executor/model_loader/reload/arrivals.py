# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a load brought: which shard, of which expert, of which parameter.

A shard that comes twice is one arrival. Elements are counted only to tell that a
parameter which the first load got whole now came in all of its shards, or the other
way round.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm.model_executor.model_loader.weight_utils import default_weight_loader

__all__ = ["Arrivals", "Place", "get_weight_loader", "observed_loader", "place_of"]

Place = tuple[tuple[str, Hashable], ...]
"""Where in a parameter a tensor goes: the loader's other arguments, by name."""

# Arguments of weight loaders that do not say where a tensor goes.
_NOT_A_PLACE = frozenset({"param", "loaded_weight", "weight_name", "return_success"})


class Arrivals:
    """The tensors that reached one layer, by parameter and place."""

    def __init__(self) -> None:
        self._numel: dict[str, dict[Place, int]] = {}
        self.total = 0
        """Elements written to all parameters, those of one place once."""

    def __bool__(self) -> bool:
        return bool(self._numel)

    def __contains__(self, name: str) -> bool:
        return name in self._numel

    def __iter__(self) -> Iterator[str]:
        """Names of the parameters that something reached."""
        return iter(self._numel)

    def add(self, name: str, place: Place, numel: int) -> None:
        """Note a tensor.

        Args:
            name: Name of the parameter in its layer.
            place: Where in the parameter it went.
            numel: How many elements of the parameter it wrote.
        """
        places = self._numel.setdefault(name, {})
        self.total += numel - places.get(place, 0)
        places[place] = numel

    def update(self, other: "Arrivals") -> None:
        """Note all that another load brought."""
        for name, places in other._numel.items():
            for place, numel in places.items():
                self.add(name, place, numel)

    def without(self, names: Collection[str]) -> "Arrivals":
        """The same, but for the parameters of these names."""
        rest = Arrivals()
        rest.update(self)
        for name in rest._numel.keys() & set(names):
            rest.total -= rest.numel(name)
            del rest._numel[name]
        return rest

    @property
    def places_agree(self) -> bool:
        """Whether parameters that share a place have all of their places in common.

        A parameter of one element that is loaded once for each shard is full after
        the first; the other parameters tell which shards there are.
        """
        places = [self._numel[name].keys() for name in self]
        pairs = itertools.combinations(places, 2)
        return all(
            first == second or first.isdisjoint(second) for first, second in pairs
        )

    def numel(self, name: str) -> int:
        """Elements written to a parameter, those of one place once."""
        return sum(self._numel.get(name, {}).values())

    def missing(self, expected: "Arrivals") -> list[str]:
        """What another load brought and this one did not.

        Returns:
            Names of parameters, followed by the place in brackets where only some
            places are missing.
        """
        missing: list[str] = []
        for name, places in expected._numel.items():
            absent = [p for p in places if p not in self._numel.get(name, {})]
            if not absent or self.numel(name) >= expected.numel(name) > 0:
                continue
            if name in self:
                missing += [f"{name}[{_describe(place)}]" for place in absent]
            else:
                missing.append(name)
        return missing


def place_of(arguments: inspect.BoundArguments) -> Place:
    """Where a call of a weight loader puts the tensor that it is given."""
    named: dict[str, object] = {}
    for name, value in arguments.arguments.items():
        kind = arguments.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}[{index}]": one for index, one in enumerate(value)}
        else:
            named[name] = value
    return tuple(
        (name, value)
        for name, value in named.items()
        if name not in _NOT_A_PLACE
        and isinstance(value, (int, str, tuple))
        and _is_hashable(value)
    )


def get_weight_loader(tensor: torch.Tensor) -> Callable[..., Any]:
    """The tensor's weight loader, or the default one."""
    return getattr(tensor, "weight_loader", default_weight_loader)


def observed_loader(
    loader: Callable[..., Any],
    before_call: Callable[[], None],
    before_write: Callable[[], None],
    arrived: Callable[[Place, int], None],
) -> Callable[..., Any]:
    """A weight loader that tells what it does.

    Args:
        loader: Function, bound method or partial; called with the same arguments.
        before_call: Called before each call.
        before_write: Called before the first tensor is written to in a call. A loader
            that has nothing to write, as for an expert of another rank, does not
            get there.
        arrived: Called with place and number of elements after a call that wrote.
    """
    signature = inspect.signature(loader)

    @functools.wraps(loader)
    def load(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs)
        arguments.apply_defaults()
        before_call()
        with _WriteObserver(before_write) as observer:
            result = loader(*args, **kwargs)
        if observer.wrote and result is not False:
            numel = observer.numel
            if isinstance(param := arguments.arguments.get("param"), torch.Tensor):
                # A loader may write a second time, as to transform what it copied.
                numel = min(numel, param.numel())
            arrived(place_of(arguments), numel)
        return result

    return load


class _WriteObserver(TorchDispatchMode):
    """Sees every operation that writes to a tensor, and counts what is copied."""

    def __init__(self, before_write: Callable[[], None]):
        super().__init__()
        self.before_write = before_write
        self.wrote = False
        self.numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            if not self.wrote:
                self.before_write()
                self.wrote = True
            if func is torch.ops.aten.copy_.default:
                self.numel += args[0].numel()
        return func(*args, **(kwargs or {}))


def _describe(place: Place) -> str:
    return ", ".join(f"{name}={value}" for name, value in place)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
