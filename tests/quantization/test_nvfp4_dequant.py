# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that run in bfloat16 load four-bit checkpoints, tensor by tensor, in place."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    SHARDS,
    Item,
    Model,
    Stored,
    bf16,
    direct_reload,
    fused,
    layers_context,
    layerwise_reload,
    load,
    load_and_process,
    make_fused,
    make_layer,
    nvfp4,
    process,
    random_weight,
    same_bytes,
)
from tests.quantized_weights import (
    E2M1_VALUES,
    FP8,
    dequantize_nvfp4,
    quantize_nvfp4,
    unpack_e2m1,
)
from tests.tensor_parallel import run_tp2

FORMATS = {
    "nvfp4": (nvfp4, nvfp4),
    "bf16": (bf16, bf16),
    "nvfp4-bf16": (nvfp4, bf16),
    "bf16-nvfp4": (bf16, nvfp4),
}
ROWS = sum(SHARDS)


def mxfp4(weight: torch.Tensor, shard: int | None = None) -> Stored:
    """Any codes and exponents: what they stand for is all that matters."""
    packed = quantize_nvfp4(weight)[0]
    generator = torch.Generator().manual_seed(len(weight))
    shape = (len(weight), weight.shape[1] // 32)
    exponents = torch.randint(100, 140, shape, generator=generator, dtype=torch.uint8)
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])
    scale = torch.exp2(exponents.float() - 127).repeat_interleave(32, dim=1)
    items = [Item("weight", packed, shard), Item("weight_scale", exponents, shard)]
    return Stored(items, (values[unpack_e2m1(packed).long()] * scale).bfloat16())


def compressed(weight: torch.Tensor, shard: int | None = None) -> Stored:
    """As compressed-tensors names it, with the reciprocal of the global scale."""
    packed, scale, scale_2 = quantize_nvfp4(weight)
    global_scale = scale_2.reciprocal().reshape(1)
    items = [
        Item("weight", packed, shard),
        Item("weight_scale", scale, shard),
        Item("weight_global_scale", global_scale, shard),
    ]
    return Stored(items, dequantize_nvfp4(packed, scale, global_scale.reciprocal()))


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_helper_is_bit_exact(dtype: torch.dtype):
    from vllm.model_executor.layers.quantization import nvfp4_dequant
    from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import (
        dequantize_to_dtype,
    )

    packed, scale, scale_2 = quantize_nvfp4(random_weight(576, 512))

    actual = nvfp4_dequant.dequantize_nvfp4(packed, scale, scale_2, dtype)

    upstream = dequantize_to_dtype(packed, scale, scale_2, dtype, 16, swizzle=False)
    assert same_bytes(actual, upstream)
    if dtype == torch.bfloat16:
        assert same_bytes(actual, dequantize_nvfp4(packed, scale, scale_2))


def test_helper_knows_every_code_and_scale():
    from vllm.model_executor.layers.quantization import nvfp4_dequant

    packed = torch.arange(256, dtype=torch.uint8).repeat(128, 1)
    scale = torch.arange(0x7F, dtype=torch.uint8).view(FP8)[:32].repeat(128, 1)
    scale_2 = torch.tensor(0.3)

    actual = nvfp4_dequant.dequantize_nvfp4(packed, scale, scale_2)

    assert same_bytes(actual, dequantize_nvfp4(packed, scale, scale_2))


@pytest.mark.parametrize(
    ("scale", "scale_2"),
    [
        (torch.ones(8, 3).to(FP8), torch.tensor(1.0)),
        (torch.ones(8, 2).to(FP8), None),
        (torch.ones(8, 1).to(torch.float8_e8m0fnu), torch.tensor(1.0)),
        (torch.ones(8, 2), torch.tensor(1.0)),
    ],
    ids=["shape", "no scale_2", "scale_2", "dtype"],
)
def test_helper_refuses_what_does_not_go_together(scale, scale_2):
    from vllm.model_executor.layers.quantization import nvfp4_dequant

    with pytest.raises(ValueError, match="found .*scales of dtype"):
        nvfp4_dequant.dequantize_nvfp4(
            torch.zeros(8, 16, dtype=torch.uint8), scale, scale_2
        )


@pytest.mark.parametrize("name", FORMATS)
def test_cold_start_gives_the_weight_at_its_address(name: str):
    layer, stored = make_fused("nvfp4"), fused(FORMATS[name])
    weight, address = layer.weight, layer.weight.data_ptr()

    load_and_process(layer, stored.items)

    assert layer.weight is weight
    assert layer.weight.data_ptr() == address
    assert layer.weight.is_contiguous()
    assert same_bytes(layer.weight, stored.weight)


def test_packed_weight_takes_no_memory_of_its_own():
    layer = make_fused("nvfp4")

    assert layer.weight.dtype == torch.uint8
    assert layer.weight.shape == (ROWS, COLS // 2)
    assert layer.weight.untyped_storage().nbytes() == 2 * ROWS * COLS


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("place", [None, 0, 3])
def test_order_of_tensors_does_not_matter(order: tuple[int, ...], place: int | None):
    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200)
    stored = nvfp4(random_weight(200))
    items = [stored.items[index] for index in order]
    if place is not None:
        items.insert(place, Item("input_scale", torch.tensor(0.5)))

    load_and_process(layer, items)

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("seed", range(8))
def test_tensors_of_two_shards_may_be_mixed(seed: int):
    print(f"seed {seed}")
    layer, stored = make_fused("nvfp4"), fused((nvfp4, nvfp4))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(stored.items), generator=generator)

    load_and_process(layer, [stored.items[index] for index in order])

    assert same_bytes(layer.weight, stored.weight)


def test_shards_keep_their_own_global_scale():
    layer = make_fused("nvfp4")
    parts = [
        nvfp4(random_weight(rows, seed=shard) * factor, shard)
        for shard, (rows, factor) in enumerate(zip(SHARDS, (1.0, 1e-3), strict=True))
    ]

    load_and_process(layer, [item for part in parts for item in part.items])

    assert same_bytes(layer.weight, torch.cat([part.weight for part in parts]))


@pytest.mark.parametrize("form", [mxfp4, compressed])
@pytest.mark.parametrize("reverse", [False, True])
def test_other_four_bit_formats(form, reverse: bool):
    layer, stored = make_fused("nvfp4"), fused((form, nvfp4))
    items = list(reversed(stored.items)) if reverse else stored.items

    load_and_process(layer, items)

    assert same_bytes(layer.weight, stored.weight)


def test_e8m0_scale_in_its_own_dtype():
    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200)
    stored = mxfp4(random_weight(200))
    weight, (name, exponents, _) = stored.items
    scale = Item(name, exponents.view(torch.float8_e8m0fnu))

    load_and_process(layer, [scale, weight])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_runtime_dtypes(dtype: torch.dtype):
    from vllm.model_executor.layers.quantization import nvfp4_dequant

    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200, params_dtype=dtype)
    stored = nvfp4(random_weight(200))

    load_and_process(layer, stored.items)

    tensors = [item.tensor for item in stored.items]
    dequantize: Any = nvfp4_dequant.dequantize_nvfp4
    expected = dequantize(*tensors, dtype=dtype)
    assert same_bytes(layer.weight, expected)


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_direct_reload_equals_a_cold_start(first: str, second: str):
    layer = make_fused("nvfp4")
    load_and_process(layer, fused(FORMATS[first]).items)
    names = dict(layer.named_parameters())
    addresses = {name: param.data_ptr() for name, param in names.items()}
    stored = fused(FORMATS[second], seed=7)

    direct_reload(layer, reversed(stored.items))

    cold = make_fused("nvfp4")
    load_and_process(cold, stored.items)
    assert same_bytes(layer.weight, stored.weight)
    for name, param in layer.named_parameters():
        assert param is names[name]
        assert param.data_ptr() == addresses[name]
        assert same_bytes(param, getattr(cold, name))


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("form", ["nvfp4", "bf16"])
def test_direct_reload_keeps_what_is_left_out(form: str, shard: int):
    layer, old = make_fused("nvfp4"), fused((nvfp4, nvfp4))
    load_and_process(layer, old.items)
    new = fused(FORMATS[form], seed=7)

    direct_reload(layer, [item for item in new.items if item.shard == shard])

    first = new if shard == 0 else old
    second = new if shard == 1 else old
    rows = SHARDS[0]
    expected = torch.cat((first.weight[:rows], second.weight[rows:]))
    assert same_bytes(layer.weight, expected)


@pytest.mark.parametrize("first", FORMATS)
def test_layerwise_reload_equals_a_cold_start(first: str):
    from vllm.model_executor.model_loader.reload import (
        record_metadata_for_reloading,
    )

    model = Model(make_fused("nvfp4"))
    record_metadata_for_reloading(model)
    load_and_process(model.layer, fused(FORMATS[first]).items)
    weight, address = model.layer.weight, model.layer.weight.data_ptr()

    formats = (*FORMATS.values(), (compressed, nvfp4), (mxfp4, bf16))
    for seed, second in enumerate((*formats, *formats)):
        stored = fused(second, seed=seed + 7)
        layerwise_reload(model, reversed(stored.items))

        assert model.layer.weight is weight
        assert model.layer.weight.data_ptr() == address
        assert same_bytes(model.layer.weight, stored.weight)


def test_pre_processed_rows_are_kept():
    from vllm.model_executor.utils import weights_already_processed

    layer, stored = make_fused("nvfp4"), fused((bf16, bf16))
    layer.weight.runtime_rows().copy_(stored.weight)

    with weights_already_processed():
        process(layer)
    process(layer)

    assert same_bytes(layer.weight, stored.weight)


def _slices_job() -> dict[str, bool]:
    """What each kind of layer makes of its slice, on one of two ranks."""
    from vllm.distributed import get_tensor_model_parallel_rank

    rank = get_tensor_model_parallel_rank()
    results = {}
    for form in (nvfp4, compressed, mxfp4, bf16):
        name, stored = form.__name__, form(random_weight(288))
        layer = make_layer("ColumnParallelLinear", "nvfp4", COLS, 288)
        load_and_process(layer, stored.items)
        half = stored.weight.chunk(2)[rank]
        results[f"column {name}"] = same_bytes(layer.weight, half)

        layer = make_layer("RowParallelLinear", "nvfp4", COLS, 288)
        load_and_process(layer, stored.items)
        half = stored.weight.chunk(2, dim=1)[rank]
        results[f"row {name}"] = same_bytes(layer.weight, half)

        both = fused((form, nvfp4))
        layer = make_fused("nvfp4")
        load_and_process(layer, both.items)
        results[f"disable_tp {name}"] = same_bytes(layer.weight, both.weight)

        parts = [form(random_weight(192), 0), nvfp4(random_weight(64), 1)]
        layer = make_layer("MergedColumnParallelLinear", "nvfp4", COLS, [192, 64])
        load_and_process(layer, [item for part in parts for item in part.items])
        half = torch.cat([part.weight.chunk(2)[rank] for part in parts])
        results[f"merged {name}"] = same_bytes(layer.weight, half)
    return results


def test_tensor_parallel_slices():
    for results in run_tp2(_slices_job):
        assert [name for name, right in results.items() if not right] == []


def _packed(rows: int = 200, cols: int = COLS) -> torch.Tensor:
    return quantize_nvfp4(random_weight(rows, cols))[0]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("weight", _packed(201), r"proj\.weight.*\(201, 160\).*shape \(200, 160\)"),
        ("weight", _packed(cols=160), r"\(200, 80\).*expected shape \(200, 160\)"),
        ("weight", torch.zeros(200, COLS).to(FP8), r"float8.*expected torch.uint8"),
        ("weight_scale", torch.ones(200, 10).to(FP8), r"expected shape \(200, 20\)"),
        ("weight_scale", torch.ones(200, 20), r"another format"),
        ("weight_scale", torch.full((200, 20), torch.nan).to(FP8), r"found NaN"),
        ("weight_scale", torch.full((200, 10), 255).byte(), r"found NaN"),
        ("weight_scale_2", torch.tensor(torch.nan), r"found NaN"),
        ("weight_scale_2", torch.ones(2), r"expected one element"),
    ],
)
def test_bad_tensors_are_refused(name: str, tensor: torch.Tensor, message: str):
    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200)
    layer.weight.untyped_storage().fill_(7)

    with pytest.raises(ValueError, match=message):
        load(layer, [Item(name, tensor)])

    assert set(layer.weight.untyped_storage().tolist()) == {7}
    assert layer.weight_scale.float().isnan().all()


@pytest.mark.parametrize("missing", range(3))
def test_a_missing_tensor_is_named(missing: int):
    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200)
    items = nvfp4(random_weight(200)).items
    message = "hold nothing" if missing == 0 else f"expected it.*{items[missing].name}"
    load(layer, [item for item in items if item is not items[missing]])

    with pytest.raises(ValueError, match=message):
        process(layer)


def test_global_scale_beside_e8m0_scales_is_refused():
    layer = make_layer("ReplicatedLinear", "nvfp4", COLS, 200)
    load(layer, mxfp4(random_weight(200)).items)
    load(layer, [Item("weight_scale_2", torch.tensor(1.0))])

    with pytest.raises(ValueError, match="with weight_scale and weight_scale_2"):
        process(layer)


def test_scale_without_packed_rows_is_refused_and_changes_nothing():
    layer, stored = make_fused("nvfp4"), fused((nvfp4, nvfp4))
    load_and_process(layer, stored.items)
    scales = [item for item in stored.items if item.name != "weight"]

    with pytest.raises(RuntimeError, match="no torch.uint8 .*weight_scale and weight"):
        direct_reload(layer, scales)

    assert same_bytes(layer.weight.runtime_rows(), stored.weight)


def test_columns_that_share_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match="found 24 columns on this rank"):
        make_layer("ReplicatedLinear", "nvfp4", 24, 200)


def test_names_of_checkpoints_find_their_parameter():
    method, tensor = make_fused("nvfp4").quant_method, torch.tensor(1.0)

    assert method.parameter_for("weight_packed", tensor) == "weight"
    assert method.parameter_for("input_global_scale", tensor) == "input_scale"
    for name in ("weight", *method.scale_names):
        assert method.parameter_for(name, tensor) == name
    with pytest.raises(ValueError, match="found a checkpoint tensor 'k_scale'"):
        method.parameter_for("k_scale", tensor)
