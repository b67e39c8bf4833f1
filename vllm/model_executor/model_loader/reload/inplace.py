# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
from series import before, replacing

from vllm.config import ModelConfig

from .lifecycle import (
    ReloadMode,
    abort_reload,
    check_reload_mode,
    finish_reload,
    start_reload,
)


def reload_weights(
    vllm_config,
    model,
    weights_iterator,
    weights_path,
    is_checkpoint_format,
    mode: ReloadMode = "layerwise",
):
    """
    Raises:
        ValueError: The mode is unknown, or is `direct` for weights in kernel format.
        RuntimeError: The model cannot be reloaded in this mode, or the reload failed:
            then the layers that were written to are undefined until a reload brings
            all of them.

    """
    with before("if weights_iterator is None and $$$: $$$"):
        check_reload_mode(mode)
        if mode == "direct" and not is_checkpoint_format:
            raise ValueError(
                'mode="direct" needs weights in checkpoint format, but '
                "is_checkpoint_format is False: weights in kernel format are copied in "
                'place with mode="layerwise"'
            )
    with replacing("initialize_layerwise_reload(model)"):
        pass
    with replacing("model.load_weights(weights_iterator)"):
        _reload_checkpoint(model, model_config, weights_iterator, mode)
    with replacing("finalize_layerwise_reload(model, model_config)"):
        pass


def _reload_checkpoint(
    model: nn.Module,
    model_config: ModelConfig,
    weights: Iterable[tuple[str, torch.Tensor]],
    mode: ReloadMode,
) -> set[str] | None:
    """Names that `load_weights` returned, if it returned any."""
    start_reload(model, mode)
    try:
        loaded_weights = model.load_weights(weights)
        finish_reload(model, model_config)
    except BaseException:
        abort_reload(model)
        raise
    return loaded_weights
