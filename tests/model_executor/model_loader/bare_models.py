# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Models of classes that need a GPU to be built, with what loading needs and no more.

The classes are vLLM's, and so is every method that runs. Only their constructors do
not: they choose attention backends that a CPU does not have.
"""

from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import torch

from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.reload.first_load import observe_first_load
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.models.utils import WeightsMapper
from vllm.models.deepseek_v4.common import vl_model as deepseek_v4_vl
from vllm.models.deepseek_v4.nvidia import model as deepseek_v4
from vllm.models.deepseek_v41.nvidia import model as deepseek_v41
from vllm.models.deepseek_v41.nvidia import vl_model as deepseek_v41_vl
from vllm.models.kimi_k3.nvidia import dspark_mla

HIDDEN, STREAMS, MIXES, LAYERS = 4, 2, 3, 2
CONFIG: Any = SimpleNamespace(
    dtype=torch.float32, quantization=None, word_embeddings_untied_by_checkpoint=False
)

M = TypeVar("M", bound=torch.nn.Module)
Weights = dict[str, torch.Tensor]


def bare(cls: type[M], **attributes: Any) -> M:
    """Makes a module of a class without running its constructor.

    Args:
        cls: The class.
        **attributes: What its methods need.
    """
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def parameter(*shape: int) -> torch.nn.Parameter:
    """Makes a parameter that holds zeros."""
    return torch.nn.Parameter(torch.zeros(shape), requires_grad=False)


def deepseek(module: ModuleType = deepseek_v4, **engram: Any) -> Any:
    """Makes a DeepSeek-V4 or V4.1 language model of two layers.

    Args:
        module: Module of its classes.
        **engram: Of V4.1: `engram`, `engram_config`, `model_path`.
    """
    moe = bare(torch.nn.Module, use_native_mega_moe=True)
    layers = [
        bare(
            module.DeepseekV4DecoderLayer,
            hc_attn_fn=parameter(MIXES, STREAMS * HIDDEN),
            hc_ffn_fn=parameter(MIXES, STREAMS * HIDDEN),
            hc_attn_fn_broadcast=None,
            hc_mult=STREAMS,
            hidden_size=HIDDEN,
            ffn=moe,
            engram=engram.get("engram"),
        )
        for _ in range(LAYERS)
    ]
    model_config = SimpleNamespace(
        model=engram.get("model_path"), model_weights=None, revision=None
    )
    model = bare(
        module.DeepseekV4Model,
        layers=torch.nn.ModuleList(layers),
        start_layer=0,
        end_layer=LAYERS,
        quant_config=None,
        use_sequence_parallel=False,
        config=SimpleNamespace(n_routed_experts=1),
        vllm_config=SimpleNamespace(
            engram_config=engram.get("engram_config"),
            model_config=model_config,
            load_config=SimpleNamespace(download_dir=None),
        ),
    )
    if module is deepseek_v41:
        v41: Any = deepseek_v41.DeepseekV41LLMForCausalLM
        return bare(v41, model=model)
    v4: Any = deepseek_v4.DeepseekV4ForCausalLM
    return bare(v4, model=model)


def deepseek_vision(module: ModuleType = deepseek_v4_vl) -> Any:
    """Makes a DeepSeek-V4 or V4.1 vision model around the language model."""
    cls: type[torch.nn.Module]
    if module is deepseek_v41_vl:
        cls = deepseek_v41_vl.DeepseekV41ForCausalLM
        language_model = deepseek(deepseek_v41)
        mapper = deepseek_v41_vl._make_deepseek_v4_vl_weights_mapper(
            "fp4", "weight_scale_inv"
        )
    else:
        cls = deepseek_v4_vl.DeepseekV4ForConditionalGeneration
        language_model = deepseek(deepseek_v4)
        mapper = deepseek_v4_vl._make_deepseek_v4_vl_weights_mapper(
            language_model.hf_to_vllm_mapper, image_enabled=True
        )
    language_model.hf_to_vllm_mapper = WeightsMapper()
    return bare(
        cls,
        language_model=language_model,
        image_start=parameter(HIDDEN),
        hf_to_vllm_mapper=mapper,
    )


def deepseek_weights(seed: int) -> Weights:
    """A checkpoint of the language models above."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layers.{layer}.{name}": torch.randn(
            MIXES, STREAMS * HIDDEN, generator=generator
        )
        for layer in range(LAYERS)
        for name in ("hc_attn_fn", "hc_ffn_fn")
    }


def vision_weights(seed: int) -> Weights:
    """A checkpoint of the vision models, with its own weight between the others."""
    weights = list(deepseek_weights(seed).items())
    image = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(seed))
    return dict([*weights[:1], ("image_start", image), *weights[1:]])


def broadcast_of(weights: Weights) -> torch.Tensor:
    """What the first layer derives from its weights."""
    return weights["layers.0.hc_attn_fn"].view(MIXES, STREAMS, HIDDEN).sum(dim=1)


def first_layer(model: torch.nn.Module) -> Any:
    """The first decoder layer of a language or vision model."""
    return getattr(model, "language_model", model).model.layers[0]


def kimi_draft() -> Any:
    """Makes a Kimi-K3 draft model of two layers, with a quantized KV cache."""
    layers = []
    for _ in range(LAYERS):
        norm = bare(torch.nn.Module, weight=parameter(HIDDEN), variance_epsilon=1e-6)
        attention = bare(
            torch.nn.Module,
            kv_a_layernorm=norm,
            q_lora_rank=2,
            kv_lora_rank=HIDDEN,
            qk_rope_head_dim=2,
            kv_cache_dtype="fp8",
        )
        attention.register_buffer("_k_scale", torch.ones(()))
        layers.append(bare(dspark_mla.K3DSparkDecoderLayer, self_attn=attention))
    model = bare(dspark_mla.K3DSparkModel, layers=torch.nn.ModuleList(layers))
    return bare(dspark_mla.K3DSparkForCausalLM, model=model)


def kimi_weights(seed: int) -> Weights:
    """A checkpoint of the draft model above."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layers.{layer}.self_attn.kv_a_layernorm.weight": torch.randn(
            HIDDEN, generator=generator
        )
        for layer in range(LAYERS)
    }


def cold_start(build: Callable[[], M], calls: Iterable[Weights]) -> M:
    """Builds a model, loads it, and runs vLLM's post-load processing.

    Args:
        build: Makes the model.
        calls: What to load, by calls of `load_weights`; none is a dummy load.
    """
    model = build()
    record_metadata_for_reloading(model)
    observe_first_load(model)
    load(model, calls)
    process_weights_after_loading(model, CONFIG, torch.device("cpu"))
    return model


def load(model: Any, calls: Iterable[Weights]) -> None:
    """Loads weights by calls of `load_weights`."""
    for weights in calls:
        model.load_weights(iter(weights.items()))
