# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Start, finish and abort a reload of a model's weights, in either mode.

start_reload(model, mode)
try:
    model.load_weights(weights)  # any number of times
    finish_reload(model, model_config)
except BaseException:
    abort_reload(model)
    raise
"""

from typing import Literal, Protocol, get_args
from weakref import WeakKeyDictionary

import torch

from vllm.config import ModelConfig

from .direct import DirectReload
from .layerwise_session import LayerwiseReload

__all__ = [
    "ReloadMode",
    "abort_reload",
    "check_reload_mode",
    "finish_reload",
    "is_reload_in_progress",
    "start_reload",
]

ReloadMode = Literal["layerwise", "direct"]


class _Reload(Protocol):
    def start(self) -> None: ...
    def finish(self, model_config: ModelConfig) -> None: ...
    def abort(self) -> None: ...


_under_way: WeakKeyDictionary[torch.nn.Module, _Reload] = WeakKeyDictionary()


def check_reload_mode(mode: str) -> None:
    """Check that a reload mode exists.

    Raises:
        ValueError: It does not.
    """
    if mode not in get_args(ReloadMode):
        raise ValueError(
            f"unknown reload mode {mode!r}: expected one of {get_args(ReloadMode)}"
        )


def is_reload_in_progress() -> bool:
    """Whether a model of this process is being reloaded."""
    return len(_under_way) > 0


def start_reload(model: torch.nn.Module, mode: ReloadMode = "layerwise") -> None:
    """Make a model ready to be loaded again.

    Args:
        model: Model that serves, or that a failed reload left undefined.
        mode: `layerwise` buffers the tensors of a layer until all are there; `direct`
            has loaders write into the storage that kernels read. Nothing may run on the
            model until the reload has finished.

    Raises:
        ValueError: The mode is unknown.
        RuntimeError: A reload of this model is under way, or the model cannot be
            reloaded in this mode. Nothing has changed.
    """
    check_reload_mode(mode)
    if model in _under_way:
        raise RuntimeError(
            f"a reload of this {type(model).__name__} is already in progress: finish "
            "or abort it first"
        )
    layers = set(model.modules())
    for other in list(_under_way):
        if not layers.isdisjoint(other.modules()):
            raise RuntimeError(
                f"a reload of a {type(other).__name__} that shares layers with this "
                f"{type(model).__name__} is in progress: finish or abort it first"
            )
    reload: _Reload
    reload = DirectReload(model) if mode == "direct" else LayerwiseReload(model)
    try:
        reload.start()
    except BaseException:
        reload.abort()
        raise
    _under_way[model] = reload


def finish_reload(model: torch.nn.Module, model_config: ModelConfig) -> None:
    """Complete the reload that was started, in the mode it was started in.

    Args:
        model: The model.
        model_config: The model's configuration.

    Raises:
        RuntimeError: No reload is under way; or the reload is incomplete, or failed.
            It is aborted then, and the layers that were written to stay undefined
            until a reload brings all of them.
    """
    if model not in _under_way:
        raise RuntimeError(
            f"no reload of this {type(model).__name__} is in progress: start one first"
        )
    try:
        _under_way[model].finish(model_config)
    except BaseException:
        abort_reload(model)
        raise
    del _under_way[model]


def abort_reload(model: torch.nn.Module) -> None:
    """Give a reload up; does nothing where none is under way.

    The model gets its startup tensors back, at the same addresses. What has been
    written to them is not undone: such layers stay undefined.
    """
    if reload := _under_way.pop(model, None):
        reload.abort()
