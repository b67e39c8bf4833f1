# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A tiny GLM-5.x: vLLM's own model classes, loaders and reload, on the CPU.

    spec = TinyGlm5(Architecture.CAUSAL, WeightFormat.FP8)
    first, second = make_checkpoint(spec, seed=0), make_checkpoint(spec, seed=1)
    folder = write_checkpoint(Path("first"), spec, first.tensors)
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        model = load_from_disk(spec, folder)
        reload_layerwise(model, [second.weights])
        assert not differences(model.module, expected_parameters(spec, second))

Nothing of vLLM is replaced but its platform, by one out of tree on which post-load
processing goes as on CUDA (`tests.cuda_like_platform`). This module is all that tests
and examples need to import. It imports vLLM only inside functions, and never pytest.

Models are built and processed in poisoned memory: a parameter that was not loaded
shows (`unloaded_parameters`), and cannot pass for one that was.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.glm5_checkpoint import Checkpoint, make_checkpoint, write_checkpoint
from tests.glm5_config import Architecture, Experts, TinyGlm5, WeightFormat
from tests.glm5_parameters import (
    differences,
    expected_parameters,
    poison_parameters,
    poisoned_memory,
    tensors_of,
    unloaded_parameters,
)
from tests.tensor_parallel import run_tp2, tensor_parallel_group

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from vllm.config import ModelConfig, VllmConfig

__all__ = [
    "Architecture",
    "Checkpoint",
    "Experts",
    "GlmModel",
    "TinyGlm5",
    "WeightFormat",
    "build",
    "differences",
    "engine_config",
    "expected_parameters",
    "load_from_disk",
    "load_from_stream",
    "load_weights",
    "make_checkpoint",
    "process_weights",
    "reload_direct",
    "reload_in_mode",
    "reload_layerwise",
    "run_tp2",
    "tensor_parallel_group",
    "tensors_of",
    "unloaded_parameters",
    "use_cuda_like_cpu_platform",
    "write_checkpoint",
]

Weights = Iterable[tuple[str, torch.Tensor]]
"""Named tensors of a checkpoint, for one call of `load_weights`."""


@dataclass(frozen=True)
class GlmModel:
    """A model and the configuration that it was built from.

    Attributes:
        module: The model.
        vllm_config: Configuration of the engine.
        model_config: Of this model: of the draft, if it is the MTP model.
    """

    module: torch.nn.Module
    vllm_config: "VllmConfig"
    model_config: "ModelConfig"


def engine_config(spec: TinyGlm5, folder: Path, **engine_args: Any) -> "VllmConfig":
    """Makes the configuration of an engine that serves a checkpoint.

    Needs the platform and the process groups.

    Args:
        spec: The tiny model.
        folder: The checkpoint. Of its files, config.json is read.
        **engine_args: Arguments of `EngineArgs` that differ from these.

    Returns:
        The configuration, with the tensor-parallel size of the process groups.
    """
    from vllm.distributed import get_tensor_model_parallel_world_size
    from vllm.engine.arg_utils import EngineArgs

    arguments: dict[str, Any] = dict(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=512,
        enforce_eager=True,
        use_tqdm_on_load=False,
        hf_overrides=partial(_override, spec),
        tensor_parallel_size=get_tensor_model_parallel_world_size(),
    )
    if spec.architecture is Architecture.MTP:
        speculative = {"method": "mtp", "num_speculative_tokens": 1}
        arguments["speculative_config"] = speculative
    return EngineArgs(**{**arguments, **engine_args}).create_engine_config()


def _override(spec: TinyGlm5, config: "PreTrainedConfig") -> "PreTrainedConfig":
    """Sets what Transformers would refuse, past its checks."""
    text = config.get_text_config().__dict__
    if not spec.sparse_indexer:
        text["index_topk"] = None
    if spec.nope_pad:
        text["qk_rope_head_dim"] = spec.nope_pad
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    return config


def build(spec: TinyGlm5, folder: Path, **engine_args: Any) -> GlmModel:
    """Builds a model, and poisons its parameters.

    Args:
        spec: The tiny model.
        folder: A checkpoint of it. Of its files, config.json is read.
        **engine_args: As of `engine_config`.

    Returns:
        The model, as before loading.
    """
    from vllm.model_executor.model_loader.utils import initialize_model

    vllm_config = engine_config(spec, folder, **engine_args)
    model_config = _model_config(spec, vllm_config)
    with _loading(vllm_config):
        module = initialize_model(vllm_config, model_config=model_config)
    poison_parameters(module)
    return GlmModel(module, vllm_config, model_config)


def load_weights(model: GlmModel, calls: Iterable[Weights]) -> None:
    """Loads weights into a model.

    Args:
        model: The model.
        calls: What to load, by calls of `load_weights`.
    """
    with _loading(model.vllm_config):
        for weights in calls:
            cast(Any, model.module).load_weights(iter(weights))


def process_weights(model: GlmModel) -> None:
    """Runs post-load processing on a model that has its weights."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    device = _device(model.vllm_config)
    with _loading(model.vllm_config):
        process_weights_after_loading(model.module, model.model_config, device)


def load_from_stream(
    spec: TinyGlm5, folder: Path, calls: Iterable[Weights], **engine_args: Any
) -> GlmModel:
    """Starts a model cold from weights in memory, with post-load processing.

    Args:
        spec: The tiny model.
        folder: A checkpoint of it. Of its files, config.json is read.
        calls: What to load, by calls of `load_weights`.
        **engine_args: As of `engine_config`.

    Returns:
        The model, ready to serve.
    """
    model = build(spec, folder, **engine_args)
    load_weights(model, calls)
    process_weights(model)
    return model


def load_from_disk(spec: TinyGlm5, folder: Path, **engine_args: Any) -> GlmModel:
    """Starts a model cold from a checkpoint on disk, by vLLM's default loader.

    The loader builds the model, loads it, and runs post-load processing. Parameters
    are poisoned where vLLM leaves them uninitialised.

    Args:
        spec: The tiny model.
        folder: The checkpoint.
        **engine_args: As of `engine_config`.

    Returns:
        The model, ready to serve.
    """
    from vllm.model_executor.model_loader import get_model_loader

    vllm_config = engine_config(spec, folder, **engine_args)
    model_config = _model_config(spec, vllm_config)
    loader = get_model_loader(vllm_config.load_config)
    with _loading(vllm_config):
        module = loader.load_model(vllm_config=vllm_config, model_config=model_config)
    return GlmModel(module, vllm_config, model_config)


def reload_layerwise(model: GlmModel, calls: Iterable[Weights]) -> None:
    """Reloads a model layer by layer, see `reload_in_mode`."""
    reload_in_mode(model, calls, "layerwise")


def reload_direct(model: GlmModel, calls: Iterable[Weights]) -> None:
    """Reloads a model into the storage that kernels read, see `reload_in_mode`."""
    reload_in_mode(model, calls, "direct")


def reload_in_mode(model: GlmModel, calls: Iterable[Weights], mode: str) -> None:
    """Reloads a model as vLLM's workers do; aborts on an error.

    Args:
        model: A model that is ready to serve.
        calls: What to load, by calls of `load_weights`.
        mode: `layerwise` or `direct`.
    """
    from vllm.model_executor.model_loader.reload import (
        abort_reload,
        finish_reload,
        start_reload,
    )

    with _loading(model.vllm_config):
        start_reload(model.module, cast(Any, mode))
        try:
            load_weights(model, calls)
            finish_reload(model.module, model.model_config)
        except BaseException:
            abort_reload(model.module)
            raise


def _model_config(spec: TinyGlm5, vllm_config: "VllmConfig") -> "ModelConfig":
    if spec.architecture is not Architecture.MTP:
        return vllm_config.model_config
    assert vllm_config.speculative_config is not None
    return vllm_config.speculative_config.draft_model_config


def _device(vllm_config: "VllmConfig") -> torch.device:
    return cast(torch.device, vllm_config.device_config.device)


@contextmanager
def _loading(vllm_config: "VllmConfig") -> Iterator[None]:
    """Has what vLLM's workers have around loading, and poisoned memory."""
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    dtype = cast(torch.dtype, vllm_config.model_config.dtype)
    with (
        set_current_vllm_config(vllm_config),
        set_default_torch_dtype(dtype),
        _device(vllm_config),
        poisoned_memory(),
    ):
        yield
