# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the tiny GLM-5.x can be, and its config.json.

Two text layers, one of each attention, and the layer of multi-token prediction:

    layer 0   linear attention (KDA), dense MLP
    layer 1   latent attention (MLA), dense or with experts
    layer 2   the MTP layer: MLA, as layer 1

`kv_lora_rank` is 192, one and a half FP8 blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tests.quantized_weights import FP8_BLOCK, NVFP4_GROUP

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LAYERS = 2
MLA_LAYER = 1
MTP_LAYER = LAYERS

SIZES: dict[str, int] = dict(
    vocab_size=256,
    hidden_size=256,
    intermediate_size=256,
    moe_intermediate_size=128,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_shared_experts=1,
    n_routed_experts=4,
    num_experts_per_tok=2,
    kv_lora_rank=192,
    q_lora_rank=256,
    qk_rope_head_dim=0,
    qk_nope_head_dim=64,
    v_head_dim=64,
    max_position_embeddings=4096,
    index_topk=64,
    index_n_heads=32,
    index_head_dim=128,
    index_kpool=4,
    linear_num_heads=4,
    linear_head_dim=32,
    linear_conv_kernel_dim=4,
    hc_mult=4,
    num_nextn_predict_layers=1,
)

VISION_SIZES: dict[str, int] = dict(
    depth=1,
    hidden_size=64,
    num_heads=2,
    intermediate_size=64,
    in_channels=3,
    patch_size=14,
    temporal_patch_size=2,
    spatial_merge_size=2,
    out_hidden_size=SIZES["hidden_size"],
    projection_intermediate_size=64,
)

# A real config.json carries the last five, and num_nextn_predict_layers, as well,
# although Transformers does not declare them: it keeps what it does not know as
# attributes, and vLLM reads them.
_TEXT_OPTIONS: dict[str, Any] = dict(
    pad_token_id=0,
    layer_types=["linear_attention", "indexed_attention"],
    mhc=True,
    mla_use_nope=True,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    indexer_rope_interleave=True,
)


class Architecture(StrEnum):
    """The model class to build."""

    CAUSAL = "causal"
    """`Glm5NextForCausalLM`, text only."""
    MULTIMODAL = "multimodal"
    """`Glm5NextForConditionalGeneration`, with a vision tower of one block."""
    MTP = "mtp"
    """`Glm5NextMTP`, the draft model in a multimodal checkpoint."""


class WeightFormat(StrEnum):
    """How a checkpoint stores the MLA projections, which vLLM holds in bfloat16."""

    BF16 = "bf16"
    FP8 = "fp8"
    """Block-FP8 with float32 scales, as the released checkpoint has it."""
    FP8_BF16_SCALE = "fp8-bf16-scale"
    FP8_E8M0_SCALE = "fp8-e8m0-scale"
    QUARK = "quark"
    """Block-FP8 from AMD Quark, which names the scale `weight_scale`."""
    NVFP4_W4A16 = "nvfp4-w4a16"
    NVFP4_W4A4 = "nvfp4-w4a4"
    """NVFP4 with an `input_scale` for each weight."""

    @property
    def is_nvfp4(self) -> bool:
        """Whether weights are in NVFP4, with or without input scales."""
        return self in (WeightFormat.NVFP4_W4A16, WeightFormat.NVFP4_W4A4)


_FP8_METHOD = (
    WeightFormat.FP8,
    WeightFormat.FP8_BF16_SCALE,
    WeightFormat.FP8_E8M0_SCALE,
)


class Experts(StrEnum):
    """The MLP of layer 1 and of the MTP layer."""

    NONE = "none"
    """A dense MLP."""
    BF16 = "bf16"
    FP8 = "fp8"
    """Block-FP8. These build and load. Post-load processing finds no kernel for them
    on the CPU, and fails."""


@dataclass(frozen=True)
class TinyGlm5:
    """A tiny GLM-5.x.

    Attributes:
        architecture: The model class.
        weight_format: Of the MLA projections in the checkpoint.
        experts: MLP of layer 1 and of the MTP layer.
        sparse_indexer: Whether latent attention is sparse, and has an indexer.
        nope_pad: RoPE rows of `kv_a_proj_with_mqa` that the model has and the
            checkpoint lacks; 0 in every real one. Vanishes from config.json, since
            Transformers refuses it there, and is put back when vLLM reads the file.

    Raises:
        ValueError: if vLLM would misread `nope_pad`, or has no way to be told of FP8
            experts beside that weight format.
    """

    architecture: Architecture = Architecture.CAUSAL
    weight_format: WeightFormat = WeightFormat.FP8
    experts: Experts = Experts.NONE
    sparse_indexer: bool = True
    nope_pad: int = 0

    def __post_init__(self) -> None:
        nope = SIZES["qk_nope_head_dim"]
        if self.nope_pad < 0 or self.nope_pad % 2 or self.nope_pad == nope:
            raise ValueError(
                f"nope_pad is {self.nope_pad}; expected 0 or a positive even number, "
                f"and not qk_nope_head_dim ({nope}), which vLLM would take for a "
                "broken config.json and reset"
            )
        if self.experts is Experts.FP8 and self.weight_format not in _FP8_METHOD:
            raise ValueError(
                f"experts are in FP8 beside weights in {self.weight_format.value}; "
                "expected weights in fp8, fp8-bf16-scale or fp8-e8m0-scale"
            )

    @property
    def text_prefix(self) -> str:
        """What the names of the text model's tensors start with in a checkpoint."""
        if self.architecture is Architecture.CAUSAL:
            return "model."
        return "model.language_model."

    @property
    def has_vision(self) -> bool:
        """Whether the checkpoint has a vision tower."""
        return self.architecture is not Architecture.CAUSAL


def hf_config(spec: TinyGlm5) -> "PreTrainedConfig":
    """Makes the config.json of a checkpoint.

    Args:
        spec: The tiny model.

    Returns:
        The config of Transformers, to be saved with `save_pretrained`.
    """
    from transformers import Glm5NextConfig, Glm5NextTextConfig

    last = "dense" if spec.experts is Experts.NONE else "sparse"
    text = {**SIZES, **_TEXT_OPTIONS, "mlp_layer_types": ["dense", last]}
    config: PreTrainedConfig
    if spec.has_vision:
        config = Glm5NextConfig(
            architectures=["Glm5NextForConditionalGeneration"],
            text_config=text,
            vision_config=dict(VISION_SIZES),
        )
    else:
        config = Glm5NextTextConfig(architectures=["Glm5NextForCausalLM"], **text)
    quantization = quantization_config(spec)
    if quantization is not None:
        config.quantization_config = quantization
    return config


def quantization_config(spec: TinyGlm5) -> dict[str, Any] | None:
    """Makes the `quantization_config` of a checkpoint, or None for a BF16 one.

    All that is quantized are the MLA projections, and FP8 experts. The other linear
    layers are listed as left alone: on the CPU no kernel takes a quantized one.
    """
    left_alone = [*_left_alone(spec)]
    if spec.weight_format is WeightFormat.BF16:
        return None
    if spec.weight_format is WeightFormat.QUARK:
        return _quark_config(left_alone)
    if spec.weight_format.is_nvfp4:
        has_input = spec.weight_format is WeightFormat.NVFP4_W4A4
        return dict(
            quant_method="modelopt",
            quant_algo="NVFP4" if has_input else "W4A16_NVFP4",
            group_size=NVFP4_GROUP,
            ignore=[*left_alone, "lm_head"],
        )
    return dict(
        quant_method="fp8",
        activation_scheme="dynamic",
        weight_block_size=[FP8_BLOCK, FP8_BLOCK],
        modules_to_not_convert=left_alone,
    )


def _quark_config(left_alone: list[str]) -> dict[str, Any]:
    tensor = dict(dtype="fp8_e4m3", observer_cls="PerBlockMinMaxObserver")
    weight = dict(qscheme="per_block", block_size=[FP8_BLOCK] * 2, is_dynamic=False)
    inputs = dict(qscheme="per_group", group_size=FP8_BLOCK, is_dynamic=True)
    return dict(
        quant_method="quark",
        global_quant_config=dict(
            weight={**tensor, **weight}, input_tensors={**tensor, **inputs}
        ),
        exclude=left_alone,
        export=dict(kv_cache_group=[], pack_method="reorder"),
    )


def _left_alone(spec: TinyGlm5) -> Iterator[str]:
    """Names the linear layers that the checkpoint has in bfloat16.

    `gate_up_proj` is what vLLM fuses the two before it into; the text-only class does
    not say so to the quantization config. The MTP class does not map names at all, so
    they are also given as it has them, beginning with `model.`.
    """
    linears = ("gate_proj", "up_proj", "gate_up_proj", "down_proj")
    for prefix in dict.fromkeys((spec.text_prefix, "model.")):
        for index in range(LAYERS + 1):
            layer = f"{prefix}layers.{index}"
            for linear in linears:
                yield f"{layer}.mlp.{linear}"
                yield f"{layer}.mlp.shared_experts.{linear}"
            yield f"{layer}.self_attn.indexer.wq_b"
            if spec.experts is not Experts.FP8:
                yield f"{layer}.mlp.experts"
