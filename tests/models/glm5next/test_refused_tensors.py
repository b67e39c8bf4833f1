# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What GLM-5-next cannot take from a checkpoint is refused by name."""

from collections.abc import Callable

import pytest
import regex as re
import torch

from tests.glm5_tiny import (
    Architecture,
    TinyGlm5,
    WeightFormat,
    build,
    load_weights,
    make_checkpoint,
    process_weights,
)
from tests.models.glm5next.format_matrix import ROWS, outcome
from tests.models.glm5next.projections import (
    MODELS,
    SCALES,
    SPECS,
    FolderOf,
    attention,
    spec_id,
)

pytestmark = pytest.mark.usefixtures("glm5_process")


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.refusal])
def test_what_cannot_be_is_refused_by_name(name: str, config_folders):
    found = outcome(ROWS[name], config_folders)

    assert found.startswith(("ValueError:", "CheckpointTensorError:"))
    assert ROWS[name].layer in found
    assert re.search(ROWS[name].refusal, found), found


BAD: dict[
    str, tuple[WeightFormat, str, Callable[[torch.Tensor], torch.Tensor], str]
] = {
    "rows missing": (
        WeightFormat.FP8,
        "q_b_proj.weight",
        lambda t: t[:-1],
        r"found .* shape \(255, 256\); expected shape \(256, 256\)",
    ),
    "rows too many": (
        WeightFormat.FP8,
        "q_a_proj.weight",
        lambda t: torch.cat([t, t]),
        r"found .* shape \(512, 256\); expected shape \(256, 256\)",
    ),
    "scale of another shape": (
        WeightFormat.FP8,
        "o_proj.weight_scale_inv",
        lambda t: t[:, :1],
        r"found .* shape \(2, 1\); expected shape \(2, 2\)",
    ),
    "scale of another dtype": (
        WeightFormat.FP8,
        "q_b_proj.weight_scale_inv",
        lambda t: t.to(torch.float8_e4m3fn),
        r"found .* dtype torch.float8_e4m3fn .* expected one of",
    ),
    "NaN in a scale": (
        WeightFormat.FP8,
        "kv_a_proj_with_mqa.weight_scale_inv",
        lambda t: t * float("nan"),
        r"found NaN .* expected numbers",
    ),
    "packed width": (
        WeightFormat.NVFP4_W4A16,
        "q_b_proj.weight",
        lambda t: t[:, :-1],
        r"found .* shape \(256, 127\); expected shape \(256, 128\)",
    ),
    "group scale of another shape": (
        WeightFormat.NVFP4_W4A16,
        "o_proj.weight_scale",
        lambda t: t[:, :-1],
        r"found .* shape \(256, 15\); expected shape \(256, 16\)",
    ),
    "scale of the weight of many elements": (
        WeightFormat.NVFP4_W4A16,
        "q_a_proj.weight_scale_2",
        lambda t: t.expand(2),
        r"found .* shape \(2,\); expected one element",
    ),
    "NaN in a group scale": (
        WeightFormat.NVFP4_W4A16,
        "kv_a_proj_with_mqa.weight_scale",
        lambda t: torch.full_like(t.view(torch.uint8), 0x7F).view(t.dtype),
        r"found NaN .* expected numbers",
    ),
}


@pytest.mark.parametrize("architecture", list(Architecture))
@pytest.mark.parametrize("bad", BAD)
def test_bad_tensor_is_refused_by_its_name_in_the_checkpoint(
    bad: str, architecture: Architecture, checkpoint_folder: FolderOf
):
    weight_format, end, spoil, message = BAD[bad]
    spec = TinyGlm5(architecture, weight_format)
    tensors = make_checkpoint(spec).tensors
    name = f"{attention(spec)}{end}"
    tensors[name] = spoil(tensors[name])
    model = build(spec, checkpoint_folder(spec))

    with pytest.raises(ValueError, match=message) as caught:
        load_weights(model, [tensors.items()])

    assert str(caught.value).startswith(f"checkpoint tensor {name}: ")


@pytest.mark.parametrize("spec", SPECS, ids=spec_id)
def test_fused_tensor_with_too_many_rows_is_refused_by_its_name(
    spec: TinyGlm5, checkpoint_folder: FolderOf
):
    tensors = make_checkpoint(spec).tensors
    parts = [
        f"{attention(spec)}{end}.weight" for end in ("q_a_proj", "kv_a_proj_with_mqa")
    ]
    fused = torch.cat([tensors[name] for name in (*parts, parts[0])])
    name = f"{attention(spec)}fused_qkv_a_proj.weight"
    model = build(spec, checkpoint_folder(spec))

    message = r"fused_qkv_a_proj\.weight: found .*\(704, .*; expected 448 rows"
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(model, [[(name, fused)]])

    assert str(caught.value).startswith(f"checkpoint tensor {name}: ")


@pytest.mark.parametrize("end", ["qweight", "weight_shape", "scales"])
@pytest.mark.parametrize("weight_format", SCALES)
def test_unknown_tensor_of_a_projection_is_refused(
    weight_format: WeightFormat, end: str, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(weight_format=weight_format)
    model = build(spec, checkpoint_folder(spec))
    name = f"{attention(spec)}q_b_proj.{end}"

    with pytest.raises(ValueError, match=f"tensor {name}: found .*; expected .*weight"):
        load_weights(model, [[(name, torch.ones(1))]])


@pytest.mark.parametrize("weight_format", SCALES)
@pytest.mark.parametrize("architecture", MODELS)
def test_left_out_weight_or_scale_is_refused(
    architecture: Architecture, weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(architecture, weight_format)
    for left_out in ("weight", SCALES[weight_format][-1]):
        tensors = dict(make_checkpoint(spec).tensors)
        del tensors[f"{attention(spec)}kv_a_proj_with_mqa.{left_out}"]
        model = build(spec, checkpoint_folder(spec))
        load_weights(model, [tensors.items()])

        with pytest.raises(ValueError, match=r"fused_qkv_a_proj\.weight, shard 1: "):
            process_weights(model)


@pytest.mark.parametrize("name", ["model.visual.merger.proj.weight", "lm_head.weight"])
def test_fp8_for_a_layer_that_is_never_quantized_is_refused(
    name: str, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(Architecture.MULTIMODAL)
    tensor = make_checkpoint(spec).tensors[name].to(torch.float8_e4m3fn)
    model = build(spec, checkpoint_folder(spec))

    with pytest.raises(
        ValueError, match="float8_e4m3fn .*; expected torch.bfloat16"
    ) as e:
        load_weights(model, [[(name, tensor)]])

    assert str(e.value).startswith(f"checkpoint tensor {name}: ")


def test_missing_draft_is_refused_where_it_is_checked(checkpoint_folder: FolderOf):
    from vllm.model_executor.model_loader.mtp_validation import (
        disable_mtp_completeness_check,
    )

    spec = TinyGlm5(Architecture.MTP)
    model = build(spec, checkpoint_folder(spec))
    bucket = [("lm_head.weight", torch.ones(256, 256))]

    with disable_mtp_completeness_check():
        load_weights(model, [bucket])
    with pytest.raises(ValueError, match="layer 2 weights missing"):
        load_weights(model, [bucket])
