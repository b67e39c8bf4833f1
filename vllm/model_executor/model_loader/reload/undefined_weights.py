# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which layers of a model hold neither the old weights nor the new ones.

A reload marks a layer before it writes to it, and clears the mark when it has
finished. What is still marked afterwards was left by a reload that failed: the model
may not serve until a reload brings all of these layers completely.
"""

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import torch

__all__ = ["clear_undefined", "mark_undefined", "require_defined", "undefined_layers"]

_undefined: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()


def mark_undefined(model: torch.nn.Module, layer: str) -> None:
    """Note that a layer is about to be written to.

    Args:
        model: The model that is reloaded.
        layer: The layer's name in it.
    """
    _undefined.setdefault(model, set()).add(layer)


def clear_undefined(model: torch.nn.Module, layers: Iterable[str]) -> None:
    """Note that layers are right again."""
    remaining = undefined_layers(model) - set(layers)
    if remaining:
        _undefined[model] = remaining
    else:
        _undefined.pop(model, None)


def undefined_layers(model: torch.nn.Module) -> set[str]:
    """Names of the layers whose contents are undefined; empty for a sound model."""
    return set(_undefined.get(model, ()))


def require_defined(model: torch.nn.Module) -> None:
    """Refuse to use a model whose weights are undefined.

    Raises:
        RuntimeError: A reload is under way or has failed.
    """
    if layers := sorted(undefined_layers(model)):
        shown = ", ".join(repr(name) for name in layers[:5])
        more = f" and {len(layers) - 5} more" if len(layers) > 5 else ""
        raise RuntimeError(
            f"the weights of {len(layers)} layers of {type(model).__name__} are "
            f"undefined ({shown}{more}): a reload was started and has not finished, "
            "or has failed. Finish it, or reload all weights of these layers before "
            "the model serves again; a restart is not needed"
        )
