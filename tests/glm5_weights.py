# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Names and shapes of the weights in a checkpoint of the tiny GLM-5.x."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from tests.glm5_config import (
    LAYERS,
    MLA_LAYER,
    MTP_LAYER,
    SIZES,
    VISION_SIZES,
    Experts,
    TinyGlm5,
    WeightFormat,
)

_Shapes = Mapping[str, tuple[int, ...]]

_HIDDEN = SIZES["hidden_size"]
_HEADS = SIZES["num_attention_heads"]


@dataclass(frozen=True)
class Weight:
    """A weight of a checkpoint.

    Attributes:
        name: In the checkpoint.
        shape: As of a weight that is not quantized; a packed one takes less.
        weight_format: How the checkpoint stores it.
    """

    name: str
    shape: tuple[int, ...]
    weight_format: WeightFormat = WeightFormat.BF16

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in the checkpoint, if the weight is not quantized."""
        in_float32 = any(part in self.name for part in _IN_FLOAT32)
        return torch.float32 if in_float32 else torch.bfloat16


# Parts of the names of weights that GLM-5.x keeps in float32.
_IN_FLOAT32 = (
    ".A_log",
    ".dt_bias",
    ".e_score_correction_bias",
    ".hc_",
    ".index_kpool_compress_ape",
    ".indexer.k_norm.",
)


def checkpoint_weights(spec: TinyGlm5) -> Iterator[Weight]:
    """Lists the weights of a checkpoint, in its order.

    Args:
        spec: The tiny model.

    Returns:
        The weights, without their scales, layer by layer.
    """
    vocabulary, text = SIZES["vocab_size"], spec.text_prefix
    yield Weight(f"{text}embed_tokens.weight", (vocabulary, _HIDDEN))
    for index in range(LAYERS + 1):
        yield from _layer(spec, index)
    yield Weight(f"{text}norm.weight", (_HIDDEN,))
    if spec.has_vision:
        yield from _plain("model.visual", _vision_shapes())
    yield Weight("lm_head.weight", (vocabulary, _HIDDEN))


def _layer(spec: TinyGlm5, index: int) -> Iterator[Weight]:
    prefix = f"{spec.text_prefix}layers.{index}"
    if index < MLA_LAYER:
        yield from _plain(f"{prefix}.self_attn", _kda_shapes())
    else:
        yield from _mla(spec, f"{prefix}.self_attn")
    if index < MLA_LAYER or spec.experts is Experts.NONE:
        yield from _plain(f"{prefix}.mlp", _mlp_shapes(SIZES["intermediate_size"]))
    else:
        yield from _experts(spec, f"{prefix}.mlp")
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(f"{prefix}.{norm}.weight", (_HIDDEN,))
    if index < MTP_LAYER:
        yield from _plain(prefix, _hyper_connection_shapes())
    else:
        yield from _plain(prefix, _mtp_shapes())


def _mla(spec: TinyGlm5, prefix: str) -> Iterator[Weight]:
    q_lora, kv_lora = SIZES["q_lora_rank"], SIZES["kv_lora_rank"]
    nope, value = SIZES["qk_nope_head_dim"], SIZES["v_head_dim"]
    projections = {
        "kv_a_proj_with_mqa.weight": (kv_lora, _HIDDEN),
        "o_proj.weight": (_HIDDEN, _HEADS * value),
        "q_a_proj.weight": (q_lora, _HIDDEN),
        "q_b_proj.weight": (_HEADS * (nope + spec.nope_pad), q_lora),
    }
    others = {
        "kv_a_layernorm.weight": (kv_lora,),
        "kv_b_proj.weight": (_HEADS * (nope + value), kv_lora),
        "q_a_layernorm.weight": (q_lora,),
    }
    yield from _plain(prefix, projections, spec.weight_format)
    yield from _plain(prefix, others)
    if spec.sparse_indexer:
        yield from _plain(f"{prefix}.indexer", _indexer_shapes())


def _experts(spec: TinyGlm5, prefix: str) -> Iterator[Weight]:
    experts = SIZES["n_routed_experts"]
    shapes = _mlp_shapes(SIZES["moe_intermediate_size"])
    router = {"weight": (experts, _HIDDEN), "e_score_correction_bias": (experts,)}
    in_fp8 = spec.experts is Experts.FP8
    weight_format = spec.weight_format if in_fp8 else WeightFormat.BF16
    yield from _plain(f"{prefix}.gate", router)
    yield from _plain(f"{prefix}.shared_experts", shapes)
    for expert in range(experts):
        yield from _plain(f"{prefix}.experts.{expert}", shapes, weight_format)


def _plain(
    prefix: str, shapes: _Shapes, weight_format: WeightFormat = WeightFormat.BF16
) -> Iterator[Weight]:
    for name, shape in shapes.items():
        yield Weight(f"{prefix}.{name}", shape, weight_format)


def _indexer_shapes() -> _Shapes:
    heads, head = SIZES["index_n_heads"], SIZES["index_head_dim"]
    return {
        "index_kpool_compress_ape": (SIZES["index_kpool"], head),
        "index_kpool_compress_gate": (head, _HIDDEN),
        "k_norm.bias": (head,),
        "k_norm.weight": (head,),
        "weights_proj.weight": (heads, _HIDDEN),
        "wk.weight": (head, _HIDDEN),
        "wq_b.weight": (heads * head, SIZES["q_lora_rank"]),
    }


def _kda_shapes() -> _Shapes:
    heads, head = SIZES["linear_num_heads"], SIZES["linear_head_dim"]
    wide, kernel = heads * head, SIZES["linear_conv_kernel_dim"]
    return {
        "A_log": (heads,),
        "b_proj.weight": (heads, _HIDDEN),
        "dt_bias": (wide,),
        "o_norm.weight": (head,),
        "o_proj.weight": (_HIDDEN, wide),
        **{f"{gate}_a_proj.weight": (head, _HIDDEN) for gate in "fg"},
        **{f"{gate}_b_proj.weight": (wide, head) for gate in "fg"},
        **{f"{part}_conv1d.weight": (wide, 1, kernel) for part in "kqv"},
        **{f"{part}_proj.weight": (wide, _HIDDEN) for part in "kqv"},
    }


def _mlp_shapes(intermediate: int) -> _Shapes:
    return {
        "down_proj.weight": (_HIDDEN, intermediate),
        "gate_proj.weight": (intermediate, _HIDDEN),
        "up_proj.weight": (intermediate, _HIDDEN),
    }


def _hyper_connection_shapes() -> _Shapes:
    streams = SIZES["hc_mult"]
    mix = (2 + streams) * streams
    shapes = {"base": (mix,), "fn": (mix, streams * _HIDDEN), "scale": (3,)}
    return {
        f"hc_{part}_{name}": shape
        for part in ("attn", "ffn")
        for name, shape in shapes.items()
    }


def _mtp_shapes() -> _Shapes:
    return {
        "eh_proj.weight": (_HIDDEN, 2 * _HIDDEN),
        "embed_tokens.weight": (SIZES["vocab_size"], _HIDDEN),
        "enorm.weight": (_HIDDEN,),
        "hnorm.weight": (_HIDDEN,),
        "shared_head.norm.weight": (_HIDDEN,),
    }


def _vision_shapes() -> _Shapes:
    hidden, out = VISION_SIZES["hidden_size"], VISION_SIZES["out_hidden_size"]
    wide = VISION_SIZES["intermediate_size"]
    narrow = VISION_SIZES["projection_intermediate_size"]
    head = hidden // VISION_SIZES["num_heads"]
    merged = VISION_SIZES["spatial_merge_size"]
    side, frames = VISION_SIZES["patch_size"], VISION_SIZES["temporal_patch_size"]
    patch = (VISION_SIZES["in_channels"], frames, side, side)
    return {
        "blocks.0.attn.k_norm.weight": (head,),
        "blocks.0.attn.proj.bias": (hidden,),
        "blocks.0.attn.proj.weight": (hidden, hidden),
        "blocks.0.attn.q_norm.weight": (head,),
        "blocks.0.attn.qkv.bias": (3 * hidden,),
        "blocks.0.attn.qkv.weight": (3 * hidden, hidden),
        "blocks.0.mlp.down_proj.bias": (hidden,),
        "blocks.0.mlp.down_proj.weight": (hidden, wide),
        "blocks.0.mlp.gate_proj.bias": (wide,),
        "blocks.0.mlp.gate_proj.weight": (wide, hidden),
        "blocks.0.mlp.up_proj.bias": (wide,),
        "blocks.0.mlp.up_proj.weight": (wide, hidden),
        "blocks.0.norm1.weight": (hidden,),
        "blocks.0.norm2.weight": (hidden,),
        "downsample.bias": (out,),
        "downsample.weight": (out, hidden, merged, merged),
        "merger.down_proj.weight": (out, narrow),
        "merger.gate_proj.weight": (narrow, out),
        "merger.post_projection_norm.bias": (out,),
        "merger.post_projection_norm.weight": (out,),
        "merger.proj.weight": (out, out),
        "merger.up_proj.weight": (narrow, out),
        "patch_embed.proj.bias": (hidden,),
        "patch_embed.proj.weight": (hidden, *patch),
        "post_layernorm.weight": (hidden,),
    }
