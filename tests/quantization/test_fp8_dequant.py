# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that run in bfloat16 load FP8 checkpoints, tensor by tensor, in place."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    Item,
    bf16,
    fp8,
    fused,
    layers_context,
    load,
    load_and_process,
    make_fused,
    make_layer,
    random_weight,
    same_bytes,
)
from tests.quantized_weights import FP8, dequantize_fp8, quantize_fp8
from tests.tensor_parallel import run_tp2


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_order_of_tensors_does_not_matter(order: tuple[int, ...]):
    layer, stored = make_fused(), fused((fp8, fp8))

    load_and_process(layer, [stored.items[index] for index in order])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_activation_scale_is_taken_and_not_used(place: int):
    layer = make_layer("ReplicatedLinear", COLS, 200)
    stored = fp8(random_weight(200))
    items = list(stored.items)
    items.insert(place, Item("input_scale", torch.tensor(0.5)))

    load_and_process(layer, items)

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str
)
@pytest.mark.parametrize("four_dimensions", [False, True], ids=["2d", "4d"])
def test_block_scale_of_any_dtype_and_shape(dtype: torch.dtype, four_dimensions: bool):
    layer = make_layer("ColumnParallelLinear", COLS, 576)
    stored = fp8(random_weight(576), scale_dtype=dtype)
    weight, (name, scale, _) = stored.items
    if four_dimensions:
        scale = scale[:, None, :, None]

    load_and_process(layer, [weight, Item(name, scale)])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_blocks_of_mxfp8_with_the_bytes_of_their_scales(name: str):
    from vllm.model_executor.layers.quantization.checkpoint_dequant import (
        RowDequantConfig,
    )

    config = RowDequantConfig((1, 32))
    layer = make_layer("ColumnParallelLinear", COLS, 64, quant_config=config)
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(64, COLS, generator=generator).to(FP8)
    scale = torch.randint(100, 140, (64, COLS // 32), generator=generator).byte()
    parameter = layer.quant_method.parameter_for(layer, name, scale)

    load_and_process(layer, [Item(parameter, scale), Item("weight", packed)])

    factors = scale.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
    assert same_bytes(layer.weight, (packed.float() * factors).bfloat16())


def test_bytes_of_row_scales_are_powers_of_two():
    layer = make_layer("ColumnParallelLinear", COLS, 64)
    packed = random_weight(64).to(FP8)
    scale = torch.full((64, 1), 130, dtype=torch.uint8)

    parameter = layer.quant_method.parameter_for(layer, "weight_scale", scale)

    load_and_process(layer, [Item("weight", packed), Item(parameter, scale)])

    assert same_bytes(layer.weight, (packed.float() * 8).bfloat16())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (576,), (576, 1)], ids=str)
def test_scale_of_the_tensor_or_of_its_rows(shape: tuple[int, ...]):
    layer = make_layer("ColumnParallelLinear", COLS, 576)
    weight = random_weight(576).clamp(-448, 448).to(FP8)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.1
    items = [Item("weight", weight), Item("weight_channel_scale", scale)]

    load_and_process(layer, items)

    rows = scale if scale.numel() == 1 else scale.reshape(-1, 1)
    assert same_bytes(layer.weight, (weight.float() * rows).bfloat16())


def test_every_fp8_code_is_exact():
    layer = make_layer("ReplicatedLinear", 256, 128)
    weight = torch.arange(256, dtype=torch.uint8).repeat(128, 1).view(FP8)
    scale = torch.tensor([[0.37, 1.9]])
    items = [Item("weight", weight), Item("weight_scale_inv", scale)]

    load_and_process(layer, items)

    expected = dequantize_fp8(weight, scale)
    nan = expected.isnan()
    assert torch.equal(layer.weight.isnan(), nan)
    assert same_bytes(layer.weight[~nan], expected[~nan])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_other_runtime_dtypes(dtype: torch.dtype):
    layer = make_layer("ReplicatedLinear", COLS, 200, params_dtype=dtype)
    packed, scale = quantize_fp8(random_weight(200))
    items = [Item("weight", packed), Item("weight_scale_inv", scale)]

    load_and_process(layer, items)

    blocks = scale[torch.arange(200) // 128][:, torch.arange(COLS) // 128]
    assert same_bytes(layer.weight, (packed.float() * blocks).to(dtype))


def _columns(rank_items: list[Item], expected: torch.Tensor, kind: str, *sizes) -> bool:
    layer = make_layer(kind, *sizes)
    load_and_process(layer, rank_items)
    return same_bytes(layer.weight, expected)


def _tensor_parallel_job() -> dict[str, bool]:
    """What each kind of layer makes of its slice, on one of two ranks."""
    from vllm.distributed import get_tensor_model_parallel_rank

    rank = get_tensor_model_parallel_rank()
    results = {}
    for rows in (512, 288):
        stored = fp8(random_weight(rows))
        half = stored.weight.chunk(2)[rank]
        results[f"column {rows}"] = _columns(
            stored.items, half, "ColumnParallelLinear", COLS, rows
        )
    for cols in (512, 320):
        stored = fp8(random_weight(200, cols))
        half = stored.weight.chunk(2, dim=1)[rank]
        results[f"row {cols}"] = _columns(
            stored.items, half, "RowParallelLinear", cols, 200
        )
    for form in (bf16, fp8):
        parts = [fp8(random_weight(192), 0), form(random_weight(576, seed=1), 1)]
        items = [item for part in reversed(parts) for item in part.items]
        half = torch.cat([part.weight.chunk(2)[rank] for part in parts])
        results[f"merged {form.__name__}"] = _columns(
            items, half, "MergedColumnParallelLinear", COLS, [192, 576]
        )
    results["replicated"] = _columns(
        stored.items, stored.weight, "ReplicatedLinear", cols, 200
    )
    both = fused((fp8, bf16))
    layer = make_fused()
    load_and_process(layer, both.items)
    results["disable_tp"] = same_bytes(layer.weight, both.weight)
    results |= _qkv(rank)
    return results


def _qkv(rank: int) -> dict[str, bool]:
    """Heads of 96 rows, and one key-value head that both ranks have."""
    parts = [
        fp8(random_weight(rows, seed=seed), shard)
        for seed, (rows, shard) in enumerate(((384, "q"), (96, "k"), (96, "v")))
    ]
    layer = make_layer("QKVParallelLinear", COLS, 96, 4, 1)
    load_and_process(layer, [item for part in parts for item in part.items])
    q, k, v = (part.weight for part in parts)
    return {"qkv": same_bytes(layer.weight, torch.cat((q.chunk(2)[rank], k, v)))}


def test_tensor_parallel_slices_may_start_inside_a_block():
    for results in run_tp2(_tensor_parallel_job):
        assert [name for name, right in results.items() if not right] == []


def _packed(rows: int = 200, cols: int = COLS) -> torch.Tensor:
    return quantize_fp8(random_weight(rows, cols))[0]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("weight", _packed(201), r"proj\.weight.*\(201, 320\).*shape \(200, 320\)"),
        ("weight", _packed(199), r"\(199, 320\).*expected shape \(200, 320\)"),
        ("weight", _packed(cols=160), r"\(200, 160\).*expected shape \(200, 320\)"),
        ("weight", _packed().view(torch.uint8), r"expected shape \(200, 160\)"),
        ("weight", _packed().view(torch.int8), r"int8.*expected one of"),
        ("weight", torch.zeros(400, COLS).bfloat16(), r"expected shape \(200, 320\)"),
        ("weight_scale_inv", torch.ones(3, 3), r"\(3, 3\).*expected shape \(2, 3\)"),
        ("weight_scale_inv", torch.ones(2, 3).to(FP8), r"another format"),
        ("weight_scale_inv", torch.full((2, 3), torch.nan), r"found NaN"),
        (
            "weight_channel_scale",
            torch.ones(2, 3),
            r"\(2, 3\).*expected shape \(200, 1\)",
        ),
        ("weight_channel_scale", torch.tensor(torch.nan), r"found NaN"),
        ("input_scale", torch.ones(2), r"expected one element"),
    ],
)
def test_bad_tensors_are_refused(name: str, tensor: torch.Tensor, message: str):
    layer = make_layer("ReplicatedLinear", COLS, 200)
    layer.weight.untyped_storage().fill_(7)

    with pytest.raises(ValueError, match=message):
        load(layer, [Item(name, tensor)])

    assert set(layer.weight.untyped_storage().tolist()) == {7}
    assert layer.weight_scale_inv.isnan().all()
