# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

from typing import Any

import torch
from series import after, before, replacing


def replace_parameter(
    layer: torch.nn.Module,
    param_name: str,
    new_tensor: torch.Tensor | None,
) -> torch.nn.Parameter | None:
    """
    A result of another layout that fits into the parameter's own storage is copied
    into a prefix view of it, so that the storage a loader can write into never
    shrinks and keeps its address; a larger one is rebound. Also rebound, never
    copied, is a view of the parameter's own storage (it would be copied over itself)
    and the result of an online quantization method (its source is released). An empty
    result releases the storage.

    A retired parameter that is replaced is live again. All names of a parameter keep
    naming one object, whichever of them is replaced; only None goes to one name.

    Returns:
        The parameter that the layer now has under ``param_name``: the existing object
        wherever it was kept, or None if ``new_tensor`` is None.
    """
    with replacing("return", inside="if new_tensor is None: $$$"):
        return None
    with after('new_tensor_attrs.pop("_weight_loader", None)'):
        # What becomes of a parameter is not passed on to another.
        new_tensor_attrs.pop(_RETIRED, None)
        new_tensor_attrs.pop(_RUNTIME_NAME, None)
    with replacing("old_param.device == new_tensor.device"):
        old_param.device == new_tensor.device and not _same_storage(
            old_param, new_tensor
        )
    with replacing("old_param.data = new_tensor"):
        old_param.data = _fit_into_storage(layer, old_param, new_tensor)
    with before("for $A in $B: setattr(old_param, $$$)"):
        old_param.__dict__.pop(_RETIRED, None)
    with replacing("return", follows="for $A in $B: setattr(old_param, $$$)"):
        return old_param
    with after("setattr(layer, param_name, new_param)"):
        for alias in _names_of(layer, old_param):
            layer.register_parameter(alias, new_param)
        return new_param


_RETIRED = "is_retired"
_RUNTIME_NAME = "runtime_name"


def _fit_into_storage(
    layer: torch.nn.Module, param: torch.nn.Parameter, new: torch.Tensor
) -> torch.Tensor:
    """Data for a parameter that takes over another layout.

    Returns:
        A prefix view of the parameter's storage that holds the bytes of ``new``, or
        ``new`` itself where that storage is too small, belongs to others as well, is
        about to be released, or is the storage of ``new``.
    """
    storage = param.untyped_storage()
    extent = _extent(new)
    if (
        type(new) is not torch.Tensor
        or param.is_meta
        or new.is_meta
        or new.numel() == 0
        or param.device != new.device
        or param.storage_offset() != 0
        or extent * new.element_size() > storage.nbytes()
        or _same_storage(param, new)
        or _releases_sources(layer)
        or _shares_storage(layer, param)
    ):
        return new
    prefix = torch.empty(0, dtype=new.dtype, device=new.device)
    prefix.set_(storage, 0, (extent,), (1,))
    prefix.copy_(new.as_strided((extent,), (1,)))
    return prefix.as_strided(new.shape, new.stride())


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last of a tensor, with the gaps between."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return sum((size - 1) * stride for size, stride in strides) + 1


def _same_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.is_meta or second.is_meta:
        return False
    address = first.untyped_storage().data_ptr()
    return address != 0 and address == second.untyped_storage().data_ptr()


def _releases_sources(layer: torch.nn.Module) -> bool:
    """Whether the layer's method quantizes online, and so frees what was loaded.

    The class tells: requantization clears the flag on the instance.
    """
    method = getattr(layer, "quant_method", None)
    return getattr(type(method), "uses_meta_device", False)


def _shares_storage(layer: torch.nn.Module, param: torch.nn.Parameter) -> bool:
    """Whether another tensor that the layer registers lives on the same storage."""
    others = (*layer._parameters.values(), *layer._buffers.values())
    return any(
        other is not None and other is not param and _same_storage(other, param)
        for other in others
    )


def _names_of(layer: torch.nn.Module, param: torch.nn.Parameter | None) -> list[str]:
    """The names under which the layer registers a parameter; none for None."""
    if param is None:
        return []
    return [name for name, other in layer._parameters.items() if other is param]


def move_parameter(layer: torch.nn.Module, src: str, dst: str) -> torch.nn.Parameter:
    """Gives a loaded parameter the name under which the kernel reads it.

    The checkpoint name stays, and comes first: one object under both names, so that
    loaders find it in ``dict(named_parameters())`` as before. The last move decides
    the runtime name.

    Args:
        layer: Layer that has the parameter.
        src: The name it was loaded under.
        dst: Its runtime name. May already name the same object, or None.

    Returns:
        The parameter.

    Raises:
        ValueError: There is no parameter ``src``, or ``dst`` names something else.
    """
    param = _registered(layer, src)
    current = getattr(layer, dst, None)
    if current is not None and current is not param:
        raise ValueError(
            f"cannot move {src!r} of {type(layer).__name__} to {dst!r}: the layer "
            f"already has another {dst!r}, a {type(current).__name__}; replace that "
            "parameter instead, or choose another name"
        )
    if current is None:
        # A None placeholder would hold its place before the checkpoint name.
        layer._parameters.pop(dst, None)
        layer.__dict__.pop(dst, None)
        layer.register_parameter(dst, param)
    setattr(param, _RUNTIME_NAME, dst)
    return param


def retire_parameter(
    layer: torch.nn.Module, name: str, *, missing_ok: bool = False
) -> None:
    """Keeps a loaded parameter that no kernel reads.

    It stays registered, with its data, for loaders; `get_live_param` and
    `kernel_parameters` treat it as absent, until it is replaced. Use it on per-tensor
    scales and the like: what a kernel holds in another layout is replaced, not
    retired.

    Args:
        layer: Layer that has the parameter.
        name: Its name.
        missing_ok: Do nothing where there is no such parameter.

    Raises:
        ValueError: There is no such parameter, and ``missing_ok`` is False.
    """
    if missing_ok and layer._parameters.get(name) is None:
        return
    setattr(_registered(layer, name), _RETIRED, True)


def get_live_param(
    layer: torch.nn.Module, name: str, default: torch.Tensor | None = None
) -> torch.Tensor | None:
    """The tensor that a kernel may read under a name.

    Args:
        layer: Layer to look at.
        name: Name of a parameter, buffer or plain attribute.
        default: What stands for an absent one.

    Returns:
        The tensor, or ``default`` if it is absent, None, retired or empty.
    """
    tensor = getattr(layer, name, None)
    if tensor is None or getattr(tensor, _RETIRED, False):
        return default
    if isinstance(tensor, torch.Tensor) and tensor.numel() == 0:
        return default
    return tensor


def kernel_parameters(layer: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The layer's own parameters that a kernel may read.

    Args:
        layer: Layer to look at; its children are left out.

    Returns:
        Each live parameter once, under its runtime name, in order of registration.
    """
    return {
        getattr(param, _RUNTIME_NAME, name): param
        for name, param in layer.named_parameters(recurse=False)
        if get_live_param(layer, name) is not None
    }


def refill_derived(obj: object, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Writes a tensor that was derived from the weights into the one held under a name.

    Captured graphs read the held tensor at its address. It is written in place where
    shape, dtype and device are the same, and replaced otherwise. A held parameter is
    written in place, or its data is replaced; it stays the same object.

    Args:
        obj: Layer, kernel, quantization method or other object that holds the tensor as
            attribute, buffer or parameter, or does not hold it yet.
        name: Name of the attribute.
        tensor: The newly derived tensor. One on the meta device, as in a trial load,
            leaves a held tensor as it is. A parameter is taken for its data.

    Returns:
        The tensor that is held now. Hand on this one, not ``tensor``.

    Raises:
        ValueError: Something else than a tensor is held under the name.
    """
    tensor = tensor.detach()
    held = getattr(obj, name, None)
    if held is None:
        setattr(obj, name, tensor)
        return tensor
    if not isinstance(held, torch.Tensor):
        raise ValueError(
            f"cannot refill {name!r} of {type(obj).__name__}: it holds a "
            f"{type(held).__name__}, expected a tensor or nothing; choose another name"
        )
    if tensor.is_meta and not held.is_meta:
        return held
    if (
        held.shape == tensor.shape
        and held.dtype == tensor.dtype
        and held.device == tensor.device
        and not held.is_meta
    ):
        # A tensor first made in a forward pass can be written to in this mode only.
        with torch.inference_mode():
            # What lies in the held tensor's storage is read before it is written.
            held.copy_(tensor.clone() if _same_storage(held, tensor) else tensor)
    elif isinstance(held, torch.nn.Parameter):
        held.data = tensor
    else:
        setattr(obj, name, tensor)
    return getattr(obj, name)


_KEPT = "_kept_"


def keep_constants(layer: torch.nn.Module, experts: object) -> None:
    """Keeps an experts object's constants on its layer, at their first addresses.

    Post-load processing makes a new experts object each time, whose constants would
    lie elsewhere than those that captured graphs read. Call it when the object has been
    made and before its own post-load step, and for each of the objects that a wrapper
    holds.

    Args:
        layer: Layer that outlives the experts object. It holds the constants under
            private names, apart from its parameters.
        experts: Object whose classes name their constants in ``kept_constants``, each
            class its own. An attribute that it does not have, or that is None, is left.
    """
    names = {
        name: None
        for base in type(experts).__mro__
        for name in vars(base).get("kept_constants", ())
    }
    for name in names:
        constant = getattr(experts, name, None)
        if constant is not None:
            kept = refill_derived(layer, f"{_KEPT}{name}", constant)
            setattr(experts, name, kept)


def runtime_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A state dict of what kernels read: live parameters, and buffers.

    Args:
        model: Model to look at.

    Returns:
        What `model.state_dict` gives, without retired and empty parameters, and with
        a parameter of several names in one layer under its runtime name alone.
    """
    dropped = {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in model.named_modules(remove_duplicate=False)
        for name in layer._parameters.keys() - kernel_parameters(layer).keys()
    }
    state = model.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in dropped}


def lifecycle_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What `move_parameter` and `retire_parameter` noted on a parameter.

    Args:
        tensor: A parameter; anything else has no notes.

    Returns:
        The notes, for `restore_lifecycle` on the parameter's copy in another process.
    """
    notes = vars(tensor)
    return {name: notes[name] for name in (_RETIRED, _RUNTIME_NAME) if name in notes}


def restore_lifecycle(tensor: torch.Tensor, notes: dict[str, Any]) -> None:
    """Notes on a copy of a parameter what `lifecycle_of` gave for the original."""
    for name, value in notes.items():
        setattr(tensor, name, value)


def _registered(layer: torch.nn.Module, name: str) -> torch.nn.Parameter:
    param = layer._parameters.get(name)
    if param is None:
        known = ", ".join(n for n, p in layer._parameters.items() if p is not None)
        raise ValueError(
            f"{type(layer).__name__} has no parameter {name!r}; it has: "
            f"{known or 'none'}"
        )
    return param
