# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project

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
    shrinks and keeps its address; a larger one is rebound. Two results are always
    rebound: a view of the parameter's own storage (a copy would overlap itself), and
    that of an online quantization method (its source is released). A retired
    parameter that is replaced is live again.

    Returns:
        The parameter that the layer now has under ``param_name``: the existing object
        wherever it was kept, or None if ``new_tensor`` is None.
    """
    with replacing("return", inside="if new_tensor is None: $$$"):
        return None
    with replacing("old_param.data = new_tensor"):
        old_param.data = _fit_into_storage(layer, old_param, new_tensor)
    with before("for $A in $B: setattr(old_param, $$$)"):
        old_param.__dict__.pop(_RETIRED, None)
    with replacing("return", follows="for $A in $B: setattr(old_param, $$$)"):
        return old_param
    with after("setattr(layer, param_name, new_param)"):
        return new_param


_RETIRED = "is_retired"
_RUNTIME_NAME = "runtime_name"


def _fit_into_storage(
    layer: torch.nn.Module, param: torch.nn.Parameter, new: torch.Tensor
) -> torch.Tensor:
    """Data for a parameter that takes over another layout.

    Returns:
        A prefix view of the parameter's storage that holds the bytes of ``new``, or
        ``new`` itself where the storage is too small, belongs to others as well, is
        about to be released, or is the storage of ``new``.
    """
    storage = param.untyped_storage()
    extent = sum((n - 1) * s for n, s in zip(new.shape, new.stride())) + 1
    if (
        param.is_meta
        or new.is_meta
        or new.numel() == 0
        or param.device != new.device
        or extent * new.element_size() > storage.nbytes()
        or storage.data_ptr() == new.untyped_storage().data_ptr()
        or getattr(
            type(getattr(layer, "quant_method", None)), "uses_meta_device", False
        )
        or _shares_storage(layer, param)
    ):
        return new
    prefix = torch.empty(0, dtype=new.dtype, device=new.device)
    prefix.set_(storage, 0, new.shape, new.stride())
    return prefix.copy_(new)


def _releases_sources(layer: torch.nn.Module) -> bool:
    """Whether the layer's method quantizes online, and so frees what was loaded.

    The class tells: requantization clears the flag on the instance.
    """
    method = getattr(layer, "quant_method", None)
    return getattr(type(method), "uses_meta_device", False)


def _shares_storage(layer: torch.nn.Module, param: torch.nn.Parameter) -> bool:
    """Whether another tensor that the layer registers lives on the same storage."""
    address = param.untyped_storage().data_ptr()
    others = (*layer._parameters.values(), *layer._buffers.values())
    return any(
        other is not None
        and other is not param
        and not other.is_meta
        and other.untyped_storage().data_ptr() == address
        for other in others
    )


def move_parameter(layer: torch.nn.Module, src: str, dst: str) -> torch.nn.Parameter:
    """Gives a loaded parameter the name under which the kernel reads it.

    The checkpoint name stays, and comes first: one object under both names, so that
    loaders find it in ``dict(named_parameters())`` as before.

    Args:
        layer: Layer that has the parameter.
        src: The name it was loaded under.
        dst: Its runtime name. May already name the same object.

    Returns:
        The parameter.

    Raises:
        ValueError: There is no parameter ``src``, or ``dst`` names another one.
    """
    param = _registered(layer, src)
    current = getattr(layer, dst, None)
    if current is not None and current is not param:
        raise ValueError(
            f"cannot move {src!r} of {type(layer).__name__} to {dst!r}: the layer "
            f"already has another {dst!r}, of shape {tuple(current.shape)}; retire or "
            "replace that one instead"
        )
    if current is None:
        layer.__dict__.pop(dst, None)
        layer.register_parameter(dst, param)
    setattr(param, _RUNTIME_NAME, dst)
    return param


def retire_parameter(layer: torch.nn.Module, name: str) -> None:
    """Keeps a loaded parameter that no kernel reads.

    It stays registered, with its data, for loaders; `get_live_param` and
    `kernel_parameters` treat it as absent. Use it on per-tensor scales and the like:
    what a kernel holds in another layout is replaced, not retired.

    Args:
        layer: Layer that has the parameter.
        name: Its name.

    Raises:
        ValueError: There is no such parameter.
    """
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
    if tensor is None or getattr(tensor, _RETIRED, False) or tensor.numel() == 0:
        return default
    return tensor


def kernel_parameters(layer: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The layer's own parameters that a kernel may read.

    Args:
        layer: Layer to look at; its children are left out.

    Returns:
        Each live parameter once, under its runtime name, in order of registration.
    """
    live: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for name, param in layer._parameters.items():
        if param is not None and get_live_param(layer, name) is not None:
            live.setdefault(id(param), (getattr(param, _RUNTIME_NAME, name), param))
    return dict(live.values())


def _registered(layer: torch.nn.Module, name: str) -> torch.nn.Parameter:
    param = layer._parameters.get(name)
    if param is None:
        known = ", ".join(layer._parameters) or "none"
        raise ValueError(
            f"{type(layer).__name__} has no parameter {name!r}; it has: {known}"
        )
    return param
