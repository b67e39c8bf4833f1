# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A tiny MiMo-V2 with a fused FP8 QKV projection: vLLM's own classes, on the CPU.

Two layers of attention, the second with a sliding window, and a draft. With four
chunks, one has 384 rows of Q, and of the first layer 192 of K and 128 of V, which makes
five and a half blocks; of the second and of the draft 384 and 256, whole blocks.

Works on stock vLLM too, and imports vLLM only inside functions.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import torch

HIDDEN, HEADS, SWA_KV_HEADS, HEAD_DIM, V_HEAD_DIM = 256, 8, 8, 192, 128
BLOCK = 128
SEED = 7

Weights = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class TinyMimo:
    """What a tiny MiMo-V2 can be.

    Attributes:
        chunks: Number of chunks of its projections, and KV heads of its first layer.
        by_chunk: Whether blocks begin anew with each chunk.
        declared: Whether config.json says that projections are fused, on which the
            model keeps K and V of a chunk together.
        draft: Whether it is the draft.
        fused: Whether projections are fused in the checkpoint.
        quantized: Whether the checkpoint is FP8, or else bfloat16.
    """

    chunks: int = 4
    by_chunk: bool = True
    declared: bool = False
    draft: bool = False
    fused: bool = True
    quantized: bool = True

    @property
    def layers(self) -> dict[str, int]:
        """KV heads of each layer of attention, by its name in the checkpoint."""
        if self.draft:
            return {"model.mtp.layers.0.self_attn": SWA_KV_HEADS}
        return {
            "model.layers.0.self_attn": self.chunks,
            "model.layers.1.self_attn": SWA_KV_HEADS,
        }

    @property
    def projections(self) -> dict[str, int]:
        """Rows of each projection, by its name in the checkpoint."""
        found = {}
        for layer, kv_heads in self.layers.items():
            rows = (HEADS * HEAD_DIM, kv_heads * HEAD_DIM, kv_heads * V_HEAD_DIM)
            if self.fused:
                found[f"{layer}.qkv_proj"] = sum(rows)
            else:
                names = (f"{layer}.{one}_proj" for one in "qkv")
                found.update(zip(names, rows, strict=True))
        return found


@dataclass(frozen=True)
class MimoModel:
    """A model and the configuration that it was built from."""

    module: Any
    vllm_config: Any
    model_config: Any


def make_weights(spec: TinyMimo, seed: int = SEED) -> Weights:
    """The tensors of each projection, in the order of a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Weights = []
    for name, rows in spec.projections.items():
        weight = torch.randn(rows, HIDDEN, generator=generator) * 100
        if not spec.quantized:
            tensors.append((f"{name}.weight", weight.bfloat16()))
            continue
        tensors.append((f"{name}.weight", weight.to(torch.float8_e4m3fn)))
        chunks = spec.chunks if spec.fused and spec.by_chunk else 1
        blocks = chunks * -(-rows // chunks // BLOCK)
        scale = torch.rand(blocks, HIDDEN // BLOCK, generator=generator) + 0.01
        tensors.append((f"{name}.weight_scale_inv", scale))
    return tensors


def config_of(spec: TinyMimo) -> dict[str, Any]:
    """Its config.json."""
    config: dict[str, Any] = dict(
        architectures=["MiMoV2ForCausalLM"],
        model_type="mimo_v2",
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        hybrid_layer_pattern=[0, 1],
        moe_layer_freq=[0, 0],
        n_routed_experts=0,
        num_attention_heads=HEADS,
        num_key_value_heads=spec.chunks,
        head_dim=HEAD_DIM,
        v_head_dim=V_HEAD_DIM,
        swa_num_attention_heads=HEADS,
        swa_num_key_value_heads=SWA_KV_HEADS,
        swa_head_dim=HEAD_DIM,
        swa_v_head_dim=V_HEAD_DIM,
        sliding_window_size=128,
        attention_bias=False,
        hidden_act="silu",
        layernorm_epsilon=1e-5,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        num_nextn_predict_layers=1,
        quantization_config=dict(
            quant_method="fp8",
            activation_scheme="dynamic",
            weight_block_size=[BLOCK, BLOCK],
        ),
    )
    if not spec.quantized:
        del config["quantization_config"]
    if spec.declared:
        config["attention_projection_layout"] = "fused_qkv"
    return config


def build(spec: TinyMimo) -> MimoModel:
    """Builds a model, as before loading."""
    from vllm.distributed import get_tensor_model_parallel_world_size
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    _register_config()
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of(spec)))
        arguments: dict[str, Any] = dict(
            model=folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=256,
            enforce_eager=True,
            tensor_parallel_size=get_tensor_model_parallel_world_size(),
        )
        if spec.draft:
            speculative = {"method": "mtp", "num_speculative_tokens": 1}
            arguments["speculative_config"] = speculative
        vllm_config = EngineArgs(**arguments).create_engine_config()
    model_config = vllm_config.model_config
    if spec.draft:
        assert vllm_config.speculative_config is not None
        model_config = vllm_config.speculative_config.draft_model_config
    with loading(vllm_config), _kernel_chosen():
        module = initialize_model(vllm_config, model_config=model_config)
    return MimoModel(module, vllm_config, model_config)


def load(model: MimoModel, calls: Iterable[Weights]) -> None:
    """Loads weights, by calls of `load_weights`."""
    with loading(model.vllm_config):
        for weights in calls:
            model.module.load_weights(iter(weights))


def process(model: MimoModel) -> None:
    """Runs post-load processing."""
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    device = cast(torch.device, model.vllm_config.device_config.device)
    with loading(model.vllm_config):
        process_weights_after_loading(model.module, model.model_config, device)


def projections_of(model: MimoModel) -> dict[str, Any]:
    """The fused layers, by name."""
    modules = model.module.named_modules()
    return {name: layer for name, layer in modules if name.endswith("qkv_proj")}


def held(model: MimoModel) -> dict[str, torch.Tensor]:
    """What the kernels of the projections read, by name; copies, as bytes."""
    return {
        f"{name}.{kind}": getattr(layer, kind).data.clone().view(torch.uint8)
        for name, layer in projections_of(model).items()
        for kind in ("weight", "weight_scale_inv")
        if hasattr(layer, kind)
    }


@contextmanager
def loading(vllm_config: Any) -> Iterator[None]:
    """Has what vLLM's workers have around loading."""
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    device = cast(torch.device, vllm_config.device_config.device)
    with (
        set_current_vllm_config(vllm_config),
        set_default_torch_dtype(vllm_config.model_config.dtype),
        device,
        torch.no_grad(),
    ):
        yield


@contextmanager
def _kernel_chosen() -> Iterator[None]:
    """Has block FP8 get a kernel of GPUs, which processes weights and never runs."""
    from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_BLOCK_KERNELS
    from vllm.model_executor.kernels.linear.scaled_mm.triton import (
        TritonFp8BlockScaledMMKernel,
    )
    from vllm.platforms import PlatformEnum

    class Kernel(TritonFp8BlockScaledMMKernel):
        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> Any:
            return True, None

    kernels: dict[Any, Any] = {PlatformEnum.OOT: [Kernel]}
    with mock.patch.dict(cast(Any, _POSSIBLE_FP8_BLOCK_KERNELS), kernels):
        yield


def _register_config() -> None:
    """Has Transformers know the config, which comes with the checkpoint else."""
    from transformers import AutoConfig, PretrainedConfig

    class MiMoV2Config(PretrainedConfig):
        model_type = "mimo_v2"

    AutoConfig.register("mimo_v2", MiMoV2Config, exist_ok=True)
