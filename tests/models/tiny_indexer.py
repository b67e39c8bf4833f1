# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Tiny models with a DeepSeek-V3.2 indexer: vLLM's own classes, loaders and reload.

One decoder layer and one layer of multi-token prediction. Everything is in bfloat16 but
what the checkpoint stores of `wk` and `weights_proj`, which are one layer in the model.
Only those are loaded; the rest stays poisoned.
"""

import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest
import torch

from tests.current_platform import use_cuda_like_cpu_platform
from tests.glm5_parameters import (
    differences,
    poison_parameters,
    poisoned_memory,
)
from tests.glm5_tiny import GlmModel, process_weights
from tests.quantized_weights import dequantize_fp8, quantize_fp8
from tests.tensor_parallel import tensor_parallel_group

if TYPE_CHECKING:
    from vllm.config import VllmConfig

HIDDEN = 256
SHARDS = {"wk": 128, "weights_proj": 32}
"""Rows of the shards of the indexer's fused layer."""

COMMON: dict[str, Any] = dict(
    vocab_size=64,
    hidden_size=HIDDEN,
    intermediate_size=128,
    moe_intermediate_size=64,
    num_hidden_layers=1,
    num_nextn_predict_layers=1,
    first_k_dense_replace=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    q_lora_rank=64,
    kv_lora_rank=64,
    qk_nope_head_dim=64,
    qk_rope_head_dim=64,
    v_head_dim=64,
    max_position_embeddings=512,
    index_topk=64,
    index_n_heads=SHARDS["weights_proj"],
    index_head_dim=SHARDS["wk"],
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)

_IN_BF16 = (
    "self_attn.fused_qkv_a_proj",
    "self_attn.q_a_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.q_b_proj",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
    "self_attn.g_proj",
    "self_attn.linear_gate",
    "self_attn.indexer.wq_b",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "eh_proj",
)

FP8_CONFIG: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": [
        f"model.layers.{layer}.{name}" for layer in (0, 1) for name in _IN_BF16
    ],
}

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class IndexerModel:
    """A model class with an indexer.

    Attributes:
        path: Module and name of the class.
        config: What its config.json has beside `COMMON`.
        draft: The architecture that vLLM gives the draft, if the class is one.
        unreloadable: Why a reload of the model is refused, if it is.
    """

    path: str
    config: dict[str, Any] = field(hash=False)
    draft: str = ""
    unreloadable: str = ""

    @property
    def source(self) -> str:
        """Name of the indexer in the checkpoint."""
        return f"model.layers.{1 if self.draft else 0}.self_attn.indexer"

    @property
    def layer(self) -> str:
        """Name of the fused layer in the model."""
        block = "1.mtp_block" if self.draft else "0"
        return f"model.layers.{block}.self_attn.indexer.wk_weights_proj"

    def __str__(self) -> str:
        module, name = self.path.removeprefix("vllm.").split(":")
        return f"{module.removeprefix('models.')}:{name}"


@contextmanager
def indexer_process() -> Iterator[None]:
    """The platform and process groups, and what some model classes ask a GPU for."""
    from vllm.v1.worker import workspace

    with (
        use_cuda_like_cpu_platform(),
        tensor_parallel_group(),
        _without_flash_attention(),
    ):
        workspace.init_workspace_manager(torch.device("cpu"))
        yield
        workspace.reset_workspace_manager()


@contextmanager
def _without_flash_attention() -> Iterator[None]:
    """Lets modules be imported that import kernels which only CUDA builds have."""
    from vllm.v1.attention.backends import fa_utils

    kernels = "vllm.vllm_flash_attn"
    compile_kernels = "compile_flash_attn_varlen_func_from_specs"
    with pytest.MonkeyPatch.context() as patch:
        try:
            importlib.import_module(kernels)
        except ImportError:
            for name in (kernels, f"{kernels}.flash_attn_interface"):
                patch.setitem(sys.modules, name, mock.MagicMock())
            patch.setattr(fa_utils, compile_kernels, mock.MagicMock(), raising=False)
        yield


def build(
    model: IndexerModel, quantization: dict[str, Any] | None = FP8_CONFIG
) -> GlmModel:
    """Builds a model, and poisons its parameters.

    Args:
        model: The model class.
        quantization: What config.json says of it; None for an unquantized one.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    module, name = model.path.split(":")
    model_class = getattr(importlib.import_module(module), name)
    vllm_config = _engine_config(model, model_class, quantization)
    model_config = vllm_config.model_config
    if model.draft:
        assert vllm_config.speculative_config is not None
        model_config = vllm_config.speculative_config.draft_model_config
    with (
        set_current_vllm_config(vllm_config),
        set_default_torch_dtype(torch.bfloat16),
        poisoned_memory(),
    ):
        built = initialize_model(
            vllm_config, model_class=model_class, model_config=model_config
        )
    poison_parameters(built)
    return GlmModel(built, vllm_config, model_config)


def _engine_config(
    model: IndexerModel, model_class: Any, quantization: dict[str, Any] | None
) -> "VllmConfig":
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.deepseek_v2 import DeepseekV3ForCausalLM

    config = {**COMMON, **model.config}
    if quantization is not None:
        config["quantization_config"] = quantization
    arguments: dict[str, Any] = dict(
        skip_tokenizer_init=True, dtype="bfloat16", max_model_len=512
    )
    # A class that is registered is not inspected in a process of its own.
    registered = {config["architectures"][0]: model_class}
    if model.draft:
        arguments["speculative_config"] = {"method": "mtp", "num_speculative_tokens": 1}
        registered = {model.draft: model_class}
        registered[config["architectures"][0]] = DeepseekV3ForCausalLM
    with TemporaryDirectory() as folder, mock.patch.dict(ModelRegistry.models):
        for architecture, registered_class in registered.items():
            ModelRegistry.register_model(architecture, registered_class)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        engine_args = EngineArgs(model=folder, enforce_eager=True, **arguments)
        return engine_args.create_engine_config()


@dataclass(frozen=True)
class Stored:
    """An indexer as a checkpoint stores it.

    Attributes:
        tensors: By their names after that of the indexer.
        weight: Of the fused layer, [160, hidden] in bfloat16.
    """

    tensors: dict[str, torch.Tensor]
    weight: torch.Tensor


def store(fp8: Sequence[str] = ("wk",), seed: int = 0) -> Stored:
    """Makes an indexer.

    Args:
        fp8: The shards that are in block-FP8; the others are in bfloat16.
        seed: Of the weights.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors, weights = {}, []
    for shard, rows in SHARDS.items():
        weight = torch.randn(rows, HIDDEN, generator=generator)
        if shard in fp8:
            packed, scale = quantize_fp8(weight)
            tensors[f"{shard}.weight"] = packed
            tensors[f"{shard}.weight_scale_inv"] = scale
            weights.append(dequantize_fp8(packed, scale))
        else:
            weights.append(weight.bfloat16())
            tensors[f"{shard}.weight"] = weights[-1]
    return Stored(tensors, torch.cat(weights))


def each_alone(
    model: IndexerModel, stored: Stored, overwrite: bool = True
) -> Iterator[list[Named]]:
    """The tensors of an indexer, each for a call of its own.

    Args:
        model: The model class.
        stored: The indexer.
        overwrite: Whether a tensor is overwritten when the next is asked for, as by
            transports that reuse their buffers.
    """
    for name, tensor in stored.tensors.items():
        sent = tensor.clone()
        yield [(f"{model.source}.{name}", sent)]
        if overwrite:
            sent.view(torch.uint8).fill_(0x55)


def load(model: GlmModel, calls: Iterable[list[Named]]) -> set[str]:
    """Loads weights into a model, and gives the names that count as loaded."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.mtp_validation import (
        disable_mtp_completeness_check,
    )

    module = cast(Any, model.module)
    with set_current_vllm_config(model.vllm_config), disable_mtp_completeness_check():
        return {
            name for weights in calls for name in module.load_weights(iter(weights))
        }


def fault(model: GlmModel, layer: str, stored: Stored) -> str:
    """What is wrong with the weight of the fused layer; empty if nothing is."""
    name = f"{layer}.weight"
    return differences(model.module, {name: stored.weight}).get(name, "")


def outcomes(models: Sequence[IndexerModel]) -> dict[str, str]:
    """What becomes of an indexer whose tensors come each in a call of its own.

    Args:
        models: The model classes.

    Returns:
        By class, what is wrong with the weight, or the error; empty if the weight is
        right.
    """
    with indexer_process():
        return {str(model): _outcome(model) for model in models}


def _outcome(model: IndexerModel) -> str:
    stored = store()
    built = build(model)
    try:
        load(built, each_alone(model, stored))
        process_weights(built)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return fault(built, model.layer, stored)
