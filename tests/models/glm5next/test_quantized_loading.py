# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Quantized checkpoints of GLM-5-next: every format, every tensor alone, any order."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import regex as re
import torch

from tests.glm5_config import hf_config
from tests.glm5_tiny import (
    Architecture,
    Checkpoint,
    TinyGlm5,
    WeightFormat,
    build,
    differences,
    engine_config,
    expected_parameters,
    load_from_stream,
    load_weights,
    make_checkpoint,
    process_weights,
)
from tests.models.glm5next.format_matrix import (
    EXACT,
    LOADED_BY_STOCK,
    ROWS,
    outcome,
    outcomes,
)
from tests.stock_vllm import run_on_stock, write_stock_tree

pytestmark = pytest.mark.usefixtures("glm5_process")

FolderOf = Callable[[TinyGlm5], Path]
Named = tuple[str, torch.Tensor]


PROJECTIONS = ("kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj")
SCALES = {
    WeightFormat.FP8: ("weight_scale_inv",),
    WeightFormat.NVFP4_W4A16: ("weight_scale", "weight_scale_2"),
}
MODELS = [Architecture.CAUSAL, Architecture.MTP]


@pytest.fixture(scope="module")
def config_folders(tmp_path_factory) -> dict[WeightFormat, Path]:
    """A config.json of each declared format."""
    folders = {}
    for declared in {row.declared for row in ROWS.values()}:
        folders[declared] = tmp_path_factory.mktemp(declared.value)
        hf_config(TinyGlm5(weight_format=declared)).save_pretrained(folders[declared])
    return folders


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if not row.refusal])
def test_every_format_loads_exactly(name: str, config_folders):
    assert outcome(ROWS[name], config_folders) == EXACT


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.refusal])
def test_what_cannot_be_is_refused_by_name(name: str, config_folders):
    found = outcome(ROWS[name], config_folders)

    assert found.startswith(("ValueError:", "CheckpointTensorError:"))
    assert ROWS[name].layer in found
    assert re.search(ROWS[name].refusal, found), found


def test_stock_loads_a_third_of_the_formats(tmp_path: Path, config_folders):
    found = run_on_stock(write_stock_tree(tmp_path / "stock"), outcomes, config_folders)

    assert {name for name, result in found.items() if result == EXACT} == (
        LOADED_BY_STOCK
    )


def _text(spec: TinyGlm5) -> str:
    layer = 2 if spec.architecture is Architecture.MTP else 1
    return f"{spec.text_prefix}layers.{layer}.self_attn."


def _in_order(
    spec: TinyGlm5, checkpoint: Checkpoint, order: Iterable[str], activation: str
) -> list[Named]:
    """The tensors of a checkpoint, with those of the projections last.

    Of each projection, they come in the given order; the first of all, and then the
    second of all, so that none is next to another of its own.
    """
    ends = list(order)
    tensors = dict(checkpoint.tensors)
    if activation != "absent":
        ends.insert(0 if activation == "first" else len(ends), "input_scale")
    last = {}
    for end, projection in itertools.product(ends, PROJECTIONS):
        name = f"{_text(spec)}{projection}.{end}"
        found = tensors.pop(name, None)
        last[name] = torch.tensor(0.02) if found is None else found
    return [*tensors.items(), *last.items()]


ORDERS = [
    (weight_format, order)
    for weight_format, scales in SCALES.items()
    for order in itertools.permutations(("weight", *scales))
]


@pytest.mark.parametrize("activation", ["first", "last", "absent"])
@pytest.mark.parametrize("each_alone", [False, True], ids=["one-call", "each-alone"])
@pytest.mark.parametrize(
    ("weight_format", "order"), ORDERS, ids=lambda part: "-".join(part[:3])
)
@pytest.mark.parametrize("architecture", MODELS)
def test_any_order_in_any_calls_is_exact(
    architecture: Architecture,
    weight_format: WeightFormat,
    order: tuple[str, ...],
    each_alone: bool,
    activation: str,
    checkpoint_folder: FolderOf,
):
    from vllm.model_executor.model_loader.mtp_validation import (
        disable_mtp_completeness_check,
    )

    spec = TinyGlm5(architecture, weight_format)
    checkpoint = make_checkpoint(spec)
    weights = _in_order(spec, checkpoint, order, activation)
    calls = [[named] for named in weights] if each_alone else [weights]

    with disable_mtp_completeness_check():
        model = load_from_stream(spec, checkpoint_folder(spec), calls)

    # All four projections.
    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


@pytest.mark.parametrize("in_bf16", PROJECTIONS)
@pytest.mark.parametrize("weight_format", SCALES)
@pytest.mark.parametrize("architecture", MODELS)
def test_one_shard_or_projection_in_bf16_is_exact(
    architecture: Architecture,
    weight_format: WeightFormat,
    in_bf16: str,
    checkpoint_folder: FolderOf,
):
    spec = TinyGlm5(architecture, weight_format)
    checkpoint = _with_bf16(spec, make_checkpoint(spec), [in_bf16])

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


def _with_bf16(
    spec: TinyGlm5, checkpoint: Checkpoint, projections: Iterable[str]
) -> Checkpoint:
    """The checkpoint with some projections in bfloat16."""
    tensors = dict(checkpoint.tensors)
    for projection in projections:
        prefix = f"{_text(spec)}{projection}."
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]
        tensors[f"{prefix}weight"] = checkpoint.expected[f"{prefix}weight"]
    return Checkpoint(tensors, checkpoint.expected)


@pytest.mark.parametrize("declared", [*SCALES, WeightFormat.QUARK])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_bf16_checkpoint_passes_the_check_for_completeness(
    architecture: Architecture, declared: WeightFormat, tmp_path: Path
):
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    spec = TinyGlm5(architecture, declared)
    plain = make_checkpoint(TinyGlm5(architecture, WeightFormat.BF16))
    hf_config(spec).save_pretrained(tmp_path)
    model = build(spec, tmp_path)

    loaded = model.module.load_weights(iter(plain.weights))  # type: ignore[operator]

    named = {name for name, _ in model.module.named_parameters()}
    loader = DefaultModelLoader(model.vllm_config.load_config)
    loader.track_weights_loading(model.module, loaded)
    assert loaded == named
    process_weights(model)
    assert differences(model.module, expected_parameters(spec, plain)) == {}


def test_input_scale_does_not_count_as_a_weight(checkpoint_folder: FolderOf):
    spec = TinyGlm5(weight_format=WeightFormat.NVFP4_W4A4)
    model = build(spec, checkpoint_folder(spec))
    name = "model.layers.1.self_attn.q_b_proj.input_scale"

    loaded = model.module.load_weights([(name, torch.tensor(1.0))])  # type: ignore[operator]

    assert loaded == {name}


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
    name = f"{_text(spec)}{end}"
    tensors[name] = spoil(tensors[name])
    model = build(spec, checkpoint_folder(spec))

    with pytest.raises(ValueError, match=message) as caught:
        load_weights(model, [tensors.items()])

    assert str(caught.value).startswith(f"checkpoint tensor {name}: ")


@pytest.mark.parametrize("end", ["qweight", "weight_shape", "scales"])
@pytest.mark.parametrize("weight_format", SCALES)
def test_unknown_tensor_of_a_projection_is_refused(
    weight_format: WeightFormat, end: str, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(weight_format=weight_format)
    model = build(spec, checkpoint_folder(spec))
    name = f"{_text(spec)}q_b_proj.{end}"

    with pytest.raises(ValueError, match=f"tensor {name}: found .*; expected .*weight"):
        load_weights(model, [[(name, torch.ones(1))]])


def test_kv_cache_scale_is_no_scale_of_a_projection(checkpoint_folder: FolderOf):
    spec = TinyGlm5()
    checkpoint = make_checkpoint(spec)
    name = f"{_text(spec)}kv_b_proj.k_scale"
    checkpoint.tensors[name] = torch.tensor(1.0)

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


@pytest.mark.parametrize("weight_format", SCALES)
@pytest.mark.parametrize("architecture", MODELS)
def test_left_out_weight_or_scale_is_refused(
    architecture: Architecture, weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(architecture, weight_format)
    for left_out in ("weight", SCALES[weight_format][-1]):
        tensors = dict(make_checkpoint(spec).tensors)
        del tensors[f"{_text(spec)}kv_a_proj_with_mqa.{left_out}"]
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


def test_head_of_the_draft_is_that_of_its_target(checkpoint_folder: FolderOf):
    spec = TinyGlm5(Architecture.MTP)
    checkpoint = make_checkpoint(spec)
    name = "model.language_model.layers.2.shared_head.head.weight"
    checkpoint.tensors[name] = torch.ones(256, 256, dtype=torch.bfloat16)

    model = load_from_stream(spec, checkpoint_folder(spec), [checkpoint.weights])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}
    assert model.module.get_submodule("model.layers.2.shared_head").head is None


@pytest.mark.parametrize("weight_format", SCALES)
def test_draft_loads_under_the_prefix_of_a_text_only_checkpoint(
    weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    spec = TinyGlm5(Architecture.MTP, weight_format)
    checkpoint = make_checkpoint(spec)
    short = [(n.replace(".language_model", ""), t) for n, t in checkpoint.weights]

    model = load_from_stream(spec, checkpoint_folder(spec), [short])

    assert differences(model.module, expected_parameters(spec, checkpoint)) == {}


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


@pytest.mark.parametrize("architecture", list(Architecture))
@pytest.mark.parametrize("weight_format", list(WeightFormat))
def test_what_is_quantized_says_nothing_about_the_kv_cache(
    architecture: Architecture, weight_format: WeightFormat, checkpoint_folder: FolderOf
):
    from vllm.model_executor.layers.attention import MLAAttention

    spec = TinyGlm5(architecture, weight_format)
    module = build(spec, checkpoint_folder(spec)).module

    attention = [m for m in module.modules() if isinstance(m, MLAAttention)]
    assert len(attention) == 1
    assert attention[0].quant_config is None
    assert attention[0].kv_cache_dtype == "auto"


def test_bf16_checkpoint_has_plain_layers(checkpoint_folder: FolderOf):
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

    spec = TinyGlm5(weight_format=WeightFormat.BF16)
    module = build(spec, checkpoint_folder(spec)).module

    linears = [m for m in module.modules() if isinstance(m, LinearBase)]
    assert {type(m.quant_method) for m in linears} == {UnquantizedLinearMethod}


@pytest.mark.parametrize("weight_format", [WeightFormat.BF16, *SCALES])
def test_kernels_for_bf16_weights_are_chosen_as_for_a_bf16_checkpoint(
    weight_format: WeightFormat,
    checkpoint_folder: FolderOf,
    monkeypatch: pytest.MonkeyPatch,
):
    from vllm.model_executor.layers.attention import mla_attention

    operators = mla_attention.rocm_aiter_ops
    monkeypatch.setattr(operators, "is_fp4bmm_enabled", lambda: True)
    spec = TinyGlm5(weight_format=weight_format)
    module = build(spec, checkpoint_folder(spec)).module

    attention = module.get_submodule("model.layers.1.self_attn.mla_attn.mla_attn")
    assert attention.is_aiter_triton_fp4_bmm_enabled is True


@pytest.mark.parametrize("weight_format", [WeightFormat.BF16, *SCALES])
def test_low_latency_kernel_is_chosen_as_for_a_bf16_checkpoint(
    weight_format: WeightFormat,
    checkpoint_folder: FolderOf,
    monkeypatch: pytest.MonkeyPatch,
):
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models import deepseek_v2
    from vllm.models.glm5next.common.checkpoint import dequant_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    spec = TinyGlm5(weight_format=weight_format)
    vllm_config = engine_config(spec, checkpoint_folder(spec))
    hopper = SimpleNamespace(is_cuda=lambda: True, is_device_capability=lambda _: True)
    monkeypatch.setattr(deepseek_v2, "current_platform", hopper)
    with (
        set_current_vllm_config(vllm_config),
        set_default_torch_dtype(torch.bfloat16),
        torch.device("meta"),
    ):
        layer = deepseek_v2.DeepSeekV2FusedQkvAProjLinear(
            7168,
            [1536, 576],
            dequant_config(vllm_config.quant_config),
            "model.layers.1.self_attn.fused_qkv_a_proj",
        )

    assert layer._use_min_latency_gemm is True
