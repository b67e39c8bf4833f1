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
    Format,
    Item,
    bf16,
    compressed,
    fp8,
    fused,
    layers_context,
    load,
    load_and_process,
    make_fused,
    make_layer,
    mxfp4,
    nvfp4,
    random_weight,
    same_bytes,
)
from tests.quantized_weights import (
    FP8,
    dequantize_nvfp4,
    quantize_nvfp4,
)
from tests.tensor_parallel import run_tp2


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


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("place", [None, 0, 3])
def test_order_of_tensors_does_not_matter(order: tuple[int, ...], place: int | None):
    layer = make_layer("ReplicatedLinear", COLS, 200)
    stored = nvfp4(random_weight(200))
    items = [stored.items[index] for index in order]
    if place is not None:
        items.insert(place, Item("input_scale", torch.tensor(0.5)))

    load_and_process(layer, items)

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("seed", range(8))
def test_tensors_of_two_shards_may_be_mixed(seed: int):
    print(f"seed {seed}")
    layer, stored = make_fused(), fused((nvfp4, nvfp4))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(stored.items), generator=generator)

    load_and_process(layer, [stored.items[index] for index in order])

    assert same_bytes(layer.weight, stored.weight)


def test_shards_keep_their_own_global_scale():
    layer = make_fused()
    parts = [
        nvfp4(random_weight(rows, seed=shard) * factor, shard)
        for shard, (rows, factor) in enumerate(zip(SHARDS, (1.0, 1e-3), strict=True))
    ]

    load_and_process(layer, [item for part in parts for item in part.items])

    assert same_bytes(layer.weight, torch.cat([part.weight for part in parts]))


@pytest.mark.parametrize("form", [mxfp4, compressed])
@pytest.mark.parametrize("reverse", [False, True])
def test_other_four_bit_formats(form, reverse: bool):
    layer, stored = make_fused(), fused((form, nvfp4))
    items = list(reversed(stored.items)) if reverse else stored.items

    load_and_process(layer, items)

    assert same_bytes(layer.weight, stored.weight)


def test_e8m0_scale_in_its_own_dtype():
    layer = make_layer("ReplicatedLinear", COLS, 200)
    stored = mxfp4(random_weight(200))
    weight, (name, exponents, _) = stored.items
    scale = Item(name, exponents.view(torch.float8_e8m0fnu))

    load_and_process(layer, [scale, weight])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_runtime_dtypes(dtype: torch.dtype):
    from vllm.model_executor.layers.quantization import nvfp4_dequant

    layer = make_layer("ReplicatedLinear", COLS, 200, params_dtype=dtype)
    stored = nvfp4(random_weight(200))

    load_and_process(layer, stored.items)

    tensors = [item.tensor for item in stored.items]
    dequantize: Any = nvfp4_dequant.dequantize_nvfp4
    expected = dequantize(*tensors, dtype=dtype)
    assert same_bytes(layer.weight, expected)


def _slices_job() -> dict[str, bool]:
    """What each kind of layer makes of its slice, on one of two ranks."""
    from vllm.distributed import get_tensor_model_parallel_rank

    rank = get_tensor_model_parallel_rank()
    results = {}
    for form in (nvfp4, compressed, mxfp4, bf16):
        name, stored = form.__name__, form(random_weight(288))
        layer = make_layer("ColumnParallelLinear", COLS, 288)
        load_and_process(layer, stored.items)
        half = stored.weight.chunk(2)[rank]
        results[f"column {name}"] = same_bytes(layer.weight, half)

        layer = make_layer("RowParallelLinear", COLS, 288)
        load_and_process(layer, stored.items)
        half = stored.weight.chunk(2, dim=1)[rank]
        results[f"row {name}"] = same_bytes(layer.weight, half)

        both = fused((form, nvfp4))
        layer = make_fused()
        load_and_process(layer, both.items)
        results[f"disable_tp {name}"] = same_bytes(layer.weight, both.weight)

        parts = [form(random_weight(192), 0), nvfp4(random_weight(64), 1)]
        layer = make_layer("MergedColumnParallelLinear", COLS, [192, 64])
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
        ("weight_scale", torch.ones(200, 10).to(FP8), r"expected shape \(200, 20\)"),
        ("weight_scale", torch.ones(200, 20), r"another format"),
        ("weight_scale", torch.full((200, 20), torch.nan).to(FP8), r"found NaN"),
        ("weight_scale", torch.full((200, 10), 255).byte(), r"found NaN"),
        ("weight_scale_2", torch.tensor(torch.nan), r"found NaN"),
        ("weight_scale_2", torch.ones(2), r"expected one element"),
    ],
)
def test_bad_tensors_are_refused(name: str, tensor: torch.Tensor, message: str):
    layer = make_layer("ReplicatedLinear", COLS, 200)
    layer.weight.untyped_storage().fill_(7)

    with pytest.raises(ValueError, match=message):
        load(layer, [Item(name, tensor)])

    assert set(layer.weight.untyped_storage().tolist()) == {7}
    assert layer.weight_scale.float().isnan().all()


@pytest.mark.parametrize(("form", "group"), [(nvfp4, 16), (mxfp4, 32)])
def test_columns_that_share_no_whole_groups_are_refused(form: Format, group: int):
    layer = make_layer("ReplicatedLinear", 40, 200)

    with pytest.raises(ValueError, match=f"40 columns .* a multiple of {group}"):
        load(layer, form(random_weight(200, 64)).items[1:])


def test_columns_that_share_no_whole_groups_load_in_fp8():
    layer, stored = make_layer("ReplicatedLinear", 40, 200), fp8(random_weight(200, 40))

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)
