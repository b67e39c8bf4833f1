# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
import inspect
from collections.abc import Callable
from functools import partial, wraps
from inspect import BoundArguments

import torch
from series import replacing

from vllm.config import ModelConfig
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.in_place_loading import in_place_method

from .arrivals import Arrivals, Place, observed_loader
from .layerwise_completeness import (
    has_all_parameters,
    is_complete,
    keeps_left_out,
    require_complete,
)
from .layerwise_state import LayerwiseState
from .meta import SKIP_LOAD_TENSORS, materialize_layer, restore_layer_on_meta
from .post_load import process_layer, run_model_hook
from .refusals import refuse_unsafe_model
from .types import LayerReloadingInfo
from .utils import (
    get_info_size,
    get_layer_params_buffers,
    get_layer_size,
    get_layer_tensors,
    has_device_tensors,
)

__all__ += ["abort_layerwise_reload"]


@torch.no_grad()
def initialize_layerwise_reload(model: torch.nn.Module):
    """Put a model on the meta device, and have its loaders buffer what they get.

    `record_metadata_for_reloading` must have recorded its model format. When a layer
    has got all of its tensors it gets memory, its loaders run, post-load processing
    runs, and the result is copied into the kernel tensors, which go back into the
    layer. Nothing that is loaded is kept after `load_weights` returns, but copies.

    Raises:
        RuntimeError: A reload is under way; or the model has a post-load hook that is
            not declared safe to run again. Nothing has changed.
    """
    _require_no_reload(model)
    # What is loaded may be an attention layer alone: that has the hook of a layer.
    if not is_deferred_attention_layer(model):
        refuse_unsafe_model(model)
    reload = LayerwiseState.begin(model)
    # torchao would start a reload of its own in `load_weights`.
    model._original_do_torchao_reload = getattr(model, "_do_torchao_reload", False)
    model._do_torchao_reload = False
    try:
        for layer in model.modules():
            info = get_layerwise_info(layer)
            # One that quantizes online, and has not had its first load.
            if info.can_load():
                continue
            _set_up(layer, info, reload, Arrivals())
    except BaseException:
        abort_layerwise_reload(model)
        raise


def _require_no_reload(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if layer in LAYERWISE_INFO and LAYERWISE_INFO[layer].reload is not None:
            raise RuntimeError(
                f"a layerwise reload of this {type(model).__name__} was started and "
                "neither finished nor aborted, so its layers may be on the meta "
                "device: call abort_layerwise_reload(model), then start again and send "
                "all weights of the layers that are undefined"
            )


def _set_up(
    layer: torch.nn.Module,
    info: LayerReloadingInfo,
    reload: LayerwiseState,
    arrivals: Arrivals,
) -> None:
    """Makes a layer ready to be loaded again."""
    info.reload = reload
    info.arrivals = arrivals
    if in_place_method(layer):
        _observe_in_place(layer, info, reload)
        return
    info.kernel_tensors = get_layer_params_buffers(layer)
    info.kernel_non_persistent_buffers = set(layer._non_persistent_buffers_set)
    for name, tensor in get_layer_tensors(layer).items():
        if name in SKIP_LOAD_TENSORS:
            # Stays where it is, so its loader writes to what kernels read.
            tensor.weight_loader = observed_loader(
                _get_weight_loader(tensor),
                before_call=lambda: None,
                before_write=lambda: reload.mark(layer),
                arrived=lambda place, numel: None,
            )
    restore_layer_on_meta(layer, info)
    initialize_online_processing(layer)


def _observe_in_place(
    layer: torch.nn.Module, info: LayerReloadingInfo, reload: LayerwiseState
) -> None:
    """Has the loaders of a layer that is loaded in place tell what they write."""
    for name, tensor in get_layer_tensors(layer).items():
        tensor.weight_loader = observed_loader(
            _get_weight_loader(tensor),
            before_call=lambda: None,
            before_write=lambda: reload.mark(layer),
            arrived=partial(info.arrivals.add, name),
        )


def _finalize_in_place(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    """Processes what was loaded into the storage that kernels read."""
    assert info.reload is not None
    if info.arrivals:
        process_layer(layer)
        info.reload.put_back(layer)
    else:
        info.reload.restore(layer)


def _wrap_parameters_weight_loader(layer: torch.nn.Module) -> None:
    with replacing("_get_weight_loader(tensor).__name__"):
        _name_of(_get_weight_loader(tensor))


def _name_of(loader: Callable) -> str:
    """A loader's name; objects that are called, such as partials, have none."""
    return getattr(loader, "__name__", "")


def make_online_process_loader(layer: torch.nn.Module, param_name: str) -> Callable:
    """A weight loader that keeps what it gets until its layer is complete."""
    info = get_layerwise_info(layer)
    original_loader = _get_original_loader(getattr(layer, param_name))
    loader_signature = inspect.signature(original_loader)
    reached: list[tuple[Place, int]] = []
    # On a parameter on the meta device this tells where a tensor goes.
    probe = observed_loader(
        original_loader,
        before_call=reached.clear,
        before_write=lambda: None,
        arrived=lambda place, numel: reached.append((place, numel)),
    )

    @wraps(original_loader, assigned=("__doc__", "__annotations__"))
    def online_process_loader(*args, **kwargs):
        if not info.can_load():
            return _load_late(layer, info, param_name, *args, **kwargs)

        # A layer may have registered further parameters by now.
        info.load_numel_total = get_layer_size(layer)
        _wrap_parameters_weight_loader(layer)

        arguments = loader_signature.bind(*args, **kwargs)
        arguments.apply_defaults()
        if info.reload is not None and not _param_of(arguments).is_meta:
            # Looked up before the reload began.
            _set_param(arguments, getattr(layer, param_name))
        result = probe(*arguments.args, **arguments.kwargs)
        if reached:
            info.arrivals.add(param_name, *reached[0])
            info.loaded_weights.append((param_name, arguments))
            _process_or_keep(layer, info, arguments)
        return result

    return online_process_loader


def _process_or_keep(
    layer: torch.nn.Module, info: LayerReloadingInfo, arguments: BoundArguments
) -> None:
    """Process a layer that is complete; of one that is not, keep what has arrived."""
    info.load_numel = info.arrivals.total
    logger.debug(
        "%s: %d / %s", type(layer).__name__, info.load_numel, info.load_numel_total
    )
    # Attention layers are processed last, whatever has arrived.
    if not is_deferred_attention_layer(layer):
        if is_complete(layer, info):
            _layerwise_process(layer, info)
            LOADING_LAYERS.discard(layer)
            return
        _warn_of_buffers(layer, arguments)
    if info.reload is not None:
        # A transport may use the memory of what it hands over again.
        for name, value in arguments.arguments.items():
            if isinstance(value, torch.Tensor) and not value.is_meta:
                arguments.arguments[name] = value.clone()


def _warn_of_buffers(layer: torch.nn.Module, arguments: BoundArguments) -> None:
    """Warn when a second layer begins to be buffered on the device."""
    if not has_device_tensors(arguments) or layer in LOADING_LAYERS:
        return
    LOADING_LAYERS.add(layer)
    if len(LOADING_LAYERS) == 2:
        logger.warning_once(
            "Keeping %.1f MB of weights on the device for layers that are not complete "
            "yet (%s). Send the weights of one layer after the other to avoid it.",
            sum(get_info_size(LAYERWISE_INFO[layer]) for layer in LOADING_LAYERS) / 1e6,
            str(sorted(type(layer).__name__ for layer in LOADING_LAYERS)),
        )


def _load_late(
    layer: torch.nn.Module, info: LayerReloadingInfo, param_name: str, *args, **kwargs
) -> object:
    """Load a tensor of a layer that was complete and has been processed.

    Raises:
        RuntimeError: In a reload, if post-load processing cannot run over what it has
            made before.
    """
    reload = info.reload
    if reload is None:
        logger.debug("%s: Excessive loading", type(layer).__name__)
        return None
    if not keeps_left_out(layer, info):
        raise RuntimeError(
            f"{reload.full_name(layer, param_name)} arrived after all tensors of its "
            "layer had, and these have been processed and dropped; send each tensor "
            "once, and those that are sent in several parts or again before the last "
            "tensor of the layer"
        )
    reload.restore(layer)
    _set_up(layer, info, reload, info.arrivals)
    param = getattr(layer, param_name)
    if "param" in kwargs:
        kwargs["param"] = param
    else:
        args = (param, *args[1:])
    return param.weight_loader(*args, **kwargs)


def finalize_layerwise_processing(model: torch.nn.Module, model_config: ModelConfig):
    """Process the layers that were not processed while they were loaded.

    Ends a first load of layers that quantize online, and a reload. Layers with padding
    that a checkpoint does not bring are processed here, and attention layers, which
    come last.

    Args:
        model: The model.
        model_config: Its dtype is what attention layers are processed for.

    Raises:
        RuntimeError: A layer did not get all of its tensors in a reload, and cannot do
            without them. The reload is aborted; no such layer was written to.
    """
    try:
        _finalize(model, model_config)
    except BaseException:
        abort_layerwise_reload(model)
        raise


@torch.no_grad()
def _finalize(model: torch.nn.Module, model_config: ModelConfig) -> None:
    infos = {layer: get_layerwise_info(layer) for layer in model.modules()}
    reload = LayerwiseState.of(model)
    if reload is not None:
        require_complete(infos, reload)
    _allow_torchao_reload(model)
    loading = {layer: info for layer, info in infos.items() if info.can_load()}
    deferred = [layer for layer in loading if is_deferred_attention_layer(layer)]
    for layer, info in loading.items():
        if layer not in deferred:
            _finalize_layer(layer, info)
    for layer, info in infos.items():
        if info.reload is not None and in_place_method(layer):
            _finalize_in_place(layer, info)
    for layer in deferred:
        _finalize_attention_layer(layer, loading[layer], model_config)
    if reload is not None:
        _finish(reload)
    for info in infos.values():
        info.reset()
    LOADING_LAYERS.clear()


def _finalize_layer(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    if info.loaded_weights or info.reload is None:
        _layerwise_process(layer, info)
        return
    if info.first_load or (info.first_load is None and info.load_numel_total):
        logger.warning("%s: Failed to load weights", type(layer).__name__)
    _place_kernel_tensors(layer, info)


def _finish(reload: LayerwiseState) -> None:
    """End a reload whose layers are all processed."""
    reload.restore_all()
    reload.host_numbers.require_unchanged()
    if not is_deferred_attention_layer(reload.model):
        run_model_hook(reload.model)
    for layer in reload.names:
        info = get_layerwise_info(layer)
        if (
            info.first_load is None
            and info.arrivals
            and has_all_parameters(layer, info)
        ):
            info.first_load = info.arrivals
    reload.clear_marks()
    reload.end()


def abort_layerwise_reload(model: torch.nn.Module) -> None:
    """Give a layerwise reload up; does nothing where none is under way.

    The model gets its kernel tensors back, the same objects, and what was buffered is
    dropped. Layers that were written to stay undefined until a reload brings all of
    their tensors.
    """
    reload = LayerwiseState.of(model)
    if reload is None:
        return
    reload.restore_all()
    reload.host_numbers.restore()
    reload.end()
    for layer in reload.names:
        LOADING_LAYERS.discard(layer)
        if (info := get_layerwise_info(layer)).reload is reload:
            if reload.is_marked(layer) and (method := in_place_method(layer)):
                method.forget_loaded(layer)
            info.reset()
    _allow_torchao_reload(model)


def _allow_torchao_reload(model: torch.nn.Module) -> None:
    if hasattr(model, "_original_do_torchao_reload"):
        model._do_torchao_reload = model._original_do_torchao_reload


def _finalize_attention_layer(
    layer: torch.nn.Module, info: LayerReloadingInfo, model_config: ModelConfig
) -> None:
    reload = info.reload
    if reload is None:
        if info.loaded_weights:
            _layerwise_process(layer, info)
        layer.process_weights_after_loading(model_config.dtype)
        return
    _place_kernel_tensors(layer, info)
    reload.mark(layer)
    if info.loaded_weights:
        _reload_attention_scales(layer, info)
    layer.process_weights_after_loading(model_config.dtype)
    reload.put_back(layer)


def _reload_attention_scales(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    with replacing("for name, args in info.loaded_weights: $$$"):
        _replay(layer, info)


def _replay(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    """Load what has been buffered, in the order in which it came."""
    for name, arguments in info.loaded_weights:
        param = getattr(layer, name)
        _set_param(arguments, param)
        _get_original_loader(param)(*arguments.args, **arguments.kwargs)


def _param_of(arguments: BoundArguments) -> torch.Tensor:
    """The argument of a loader that is the parameter: its first."""
    return next(iter(arguments.arguments.values()))


def _set_param(arguments: BoundArguments, param: torch.Tensor) -> None:
    """Sets the argument of a loader that is the parameter: its first."""
    first = next(iter(arguments.arguments))
    arguments.arguments[first] = param


def _layerwise_process(layer: torch.nn.Module, info: LayerReloadingInfo):
    """Load and process a layer from what was buffered for it.

    In a reload, what post-load processing makes goes into the kernel tensors, which the
    layer gets back. Its loaders stay wrapped until the reload ends, so that what is
    sent again is not written in checkpoint format to what kernels read.
    """
    materialize_layer(layer, info)
    for param in get_layer_tensors(layer).values():
        param.weight_loader = _get_original_loader(param)
    _replay(layer, info)
    reload, arrivals = info.reload, info.arrivals
    if reload is None:
        process_layer(layer)
        if info.first_load is not None:
            info.first_load.update(arrivals)
        info.reset()
    else:
        # Processing may write to tensors that kernel objects hold.
        reload.mark(layer)
        process_layer(layer)
        _copy_and_restore_kernel_tensors(layer, info)
        info.reset()
        info.reload, info.arrivals = reload, arrivals
        _take_late_tensors(layer, info)
    logger.debug("%s: Processed", type(layer).__name__)


def _take_late_tensors(layer: torch.nn.Module, info: LayerReloadingInfo) -> None:
    for name, tensor in get_layer_tensors(layer).items():
        if name not in SKIP_LOAD_TENSORS:
            tensor.weight_loader = partial(_load_late, layer, info, name)


def _get_original_loader(tensor: torch.Tensor) -> Callable:
    with replacing("loader.__name__"):
        _name_of(loader)


def _copy_and_restore_kernel_tensors(layer: torch.nn.Module, info: LayerReloadingInfo):
    """Copy what post-load processing made into the kernel tensors of a reload.

    Raises:
        RuntimeError: It made tensors of another layout, or another layer brought
            different contents for the same parameter. None was written to.
    """
    assert info.reload is not None
    info.reload.refuse_conflict(layer, tuple(info.arrivals))
    info.reload.mark(layer)
    info.reload.put_back(layer)


def _place_kernel_tensors(layer: torch.nn.Module, info: LayerReloadingInfo):
    """Register the kernel tensors again: the same objects, at the same addresses."""
    assert info.reload is not None
    info.reload.restore(layer)
