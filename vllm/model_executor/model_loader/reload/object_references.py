# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a Python object refers to, as far as it can lead to a model's tensors.

Reads `__dict__`, slots, containers, closures, partials and bound methods, and runs no
property. Leaves out class attributes, globals, and the objects of packages that hold
process state or configuration.
"""

import contextlib
import enum
import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vllm.logger import init_logger

logger = init_logger(__name__)

__all__ = [
    "CONTAINER_TYPES",
    "inner_tensors",
    "is_opaque",
    "module_attributes",
    "references",
    "registered",
]

# Objects of these packages hold process state or configuration, not weights, and
# lead out of the model.
OPAQUE_PACKAGES = (
    "_thread",
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "threading",
    "torch",
    "transformers",
    "triton",
    "vllm.compilation",
    "vllm.config",
    "vllm.distributed.device_communicators",
    "vllm.distributed.parallel_state",
    "vllm.logger",
    "vllm.platforms",
)

LEAF_TYPES = frozenset({bool, bytes, complex, float, int, str, type(None)})
OPAQUE_TYPES = (
    enum.Enum,
    type,
    types.CodeType,
    types.FrameType,
    types.ModuleType,
    weakref.ref,
    weakref.ProxyType,
    weakref.CallableProxyType,
)
BOUND_TYPES = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
SET_TYPES = (set, frozenset)
DICT_TYPES = (dict, types.MappingProxyType)
CONTAINER_TYPES = (list, tuple, deque, *SET_TYPES, *DICT_TYPES)

References = Iterator[tuple[str, Any]]
"""Pairs of a label, which extends the path to the object, and what it refers to."""


def references(value: Any) -> References:
    """What an object refers to, plain values left out.

    Args:
        value: any object. `torch.nn.Module`s give their registered members under
            their own names, tensors their attributes and inner tensors.

    Yields:
        Labels such as `.name`, `[0]` or `['key']` with the object they lead to. Set
        members are numbered as the set iterates.

    """
    cls = type(value)
    if issubclass(cls, torch.nn.Module):
        for registry in ("_parameters", "_buffers", "_modules"):
            yield from registered(value, registry)
        yield from module_attributes(value)
        return
    if issubclass(cls, torch.Tensor):
        for name, tensor in inner_tensors(value).items():
            yield f".{name}", tensor
    elif issubclass(cls, DICT_TYPES):
        yield from _dict_items(value)
    elif issubclass(cls, CONTAINER_TYPES):
        yield from _members(value)
    elif issubclass(cls, types.FunctionType):
        yield from _function_references(value)
    elif issubclass(cls, BOUND_TYPES):
        yield ".__self__", value.__self__
        yield ".__func__", getattr(value, "__func__", None)
    elif issubclass(cls, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    yield from _attributes(value)


def registered(module: torch.nn.Module, registry: str) -> References:
    """Members of `_parameters`, `_buffers` or `_modules` that are not None."""
    for name, value in vars(module).get(registry, {}).items():
        if value is not None:
            yield f".{name}", value


def module_attributes(module: torch.nn.Module) -> References:
    """What a module holds outside its registries."""
    for label, value in _attributes(module):
        if label in ("._parameters", "._buffers", "._modules"):
            continue
        # Hooks are keyed by a process-wide counter, which would enter the names.
        is_hooks = label.endswith("_hooks") and issubclass(type(value), dict)
        yield label, list(value.values()) if is_hooks else value


def inner_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that a wrapper subclass stands for; none for any other tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        return {}
    try:
        names, _ = tensor.__tensor_flatten__()
        return {name: getattr(tensor, name) for name in names}
    except Exception as error:  # whatever the code of the subclass raises
        logger.warning_once("Cannot look into a %s: %s", type(tensor).__name__, error)
        return {}


def is_opaque(value: Any) -> bool:
    """Whether an object is a plain value or belongs to an opaque package."""
    cls = type(value)
    if cls in LEAF_TYPES or issubclass(cls, OPAQUE_TYPES):
        return True
    if issubclass(cls, types.FunctionType):
        return _in_opaque_package(str(value.__module__))
    return _is_opaque_class(cls)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _is_opaque_class(cls: type) -> bool:
    if issubclass(cls, (torch.nn.Module, torch.Tensor, *CONTAINER_TYPES)):
        return False
    return any(_in_opaque_package(str(base.__module__)) for base in cls.__mro__)


def _in_opaque_package(module: str) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in OPAQUE_PACKAGES)


def _dict_items(mapping: Any) -> References:
    # `dict.items`, since a subclass may load its values when asked for them.
    is_dict = issubclass(type(mapping), dict)
    items = dict.items(mapping) if is_dict else mapping.items()
    for index, (key, member) in enumerate(list(items)):
        if type(member) not in LEAF_TYPES:
            yield f"[{_key_label(key, index)}]", member


def _key_label(key: Any, index: int) -> str:
    """A dict key as text; by position if its `repr` may hold an address."""
    if isinstance(key, enum.Enum):
        return f"{type(key).__name__}.{key.name}"
    if isinstance(key, (torch.dtype, torch.device)):
        return str(key)
    parts = key if type(key) is tuple else (key,)
    if all(type(part) in LEAF_TYPES for part in parts):
        return repr(key)
    return f"<{type(key).__name__} {index}>"


def _members(container: Any) -> References:
    cls = type(container)
    base = next(base for base in CONTAINER_TYPES if issubclass(cls, base))
    fields = getattr(cls, "_fields", ()) if base is tuple else ()
    for index, member in enumerate(base.__iter__(container)):
        if type(member) in LEAF_TYPES:
            continue
        if base in SET_TYPES:
            yield f"{{{index}}}", member
        elif index < len(fields):
            yield f".{fields[index]}", member
        else:
            yield f"[{index}]", member


def _function_references(function: types.FunctionType) -> References:
    """Closure variables and defaults; never globals."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f".{name}", cell.cell_contents
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def _attributes(value: Any) -> References:
    """Instance attributes in `__dict__` and in slots."""
    try:
        attributes = dict(object.__getattribute__(value, "__dict__"))
    except Exception:  # no `__dict__`, or one that is a property
        attributes = {}
    for cls in type(value).__mro__:
        if "__slots__" in vars(cls):
            for name, slot in vars(cls).items():
                if isinstance(slot, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # not assigned yet
                        attributes[name] = slot.__get__(value)
    # Sorted, as an attribute that is set again goes to the end of `__dict__`.
    for name in sorted(attributes, key=str):
        if type(attributes[name]) not in LEAF_TYPES:
            yield f".{name}", attributes[name]
