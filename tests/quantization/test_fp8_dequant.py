# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers that run in bfloat16 load FP8 checkpoints, tensor by tensor, in place."""

from collections.abc import Iterable, Iterator
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    SHARDS,
    Item,
    Model,
    bf16,
    direct_reload,
    fp8,
    fused,
    layers_context,
    layerwise_reload,
    load,
    load_and_process,
    make_fused,
    make_layer,
    process,
    random_weight,
    same_bytes,
)
from tests.quantized_weights import FP8, dequantize_fp8, quantize_fp8
from tests.tensor_parallel import run_tp2

FORMATS = {
    "fp8": (fp8, fp8),
    "bf16": (bf16, bf16),
    "fp8-bf16": (fp8, bf16),
    "bf16-fp8": (bf16, fp8),
}
ROWS = sum(SHARDS)


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


@pytest.mark.parametrize("name", FORMATS)
def test_cold_start_gives_the_weight_at_its_address(name: str):
    layer, stored = make_fused("fp8"), fused(FORMATS[name])
    weight, address = layer.weight, layer.weight.data_ptr()

    load_and_process(layer, stored.items)

    assert layer.weight is weight
    assert layer.weight.data_ptr() == address
    assert layer.weight.is_contiguous()
    assert same_bytes(layer.weight, stored.weight)


def test_packed_weight_takes_no_memory_of_its_own():
    layer = make_fused("fp8")

    assert layer.weight.dtype == FP8
    assert layer.weight.shape == (ROWS, COLS)
    assert layer.weight.untyped_storage().nbytes() == 2 * ROWS * COLS


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_order_of_tensors_does_not_matter(order: tuple[int, ...]):
    layer, stored = make_fused("fp8"), fused((fp8, fp8))

    load_and_process(layer, [stored.items[index] for index in order])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_activation_scale_is_taken_and_not_used(place: int):
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200)
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
    layer = make_layer("ColumnParallelLinear", "fp8", COLS, 576)
    stored = fp8(random_weight(576), scale_dtype=dtype)
    weight, (name, scale, _) = stored.items
    if four_dimensions:
        scale = scale[:, None, :, None]

    load_and_process(layer, [weight, Item(name, scale)])

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_blocks_of_mxfp8_with_the_bytes_of_their_scales(name: str):
    from vllm.model_executor.layers.quantization.fp8_dequant import Fp8DequantConfig

    config = Fp8DequantConfig((1, 32))
    layer = make_layer("ColumnParallelLinear", "fp8", COLS, 64, quant_config=config)
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(64, COLS, generator=generator).to(FP8)
    scale = torch.randint(100, 140, (64, COLS // 32), generator=generator).byte()
    parameter = layer.quant_method.parameter_for(name, scale)

    load_and_process(layer, [Item(parameter, scale), Item("weight", packed)])

    factors = scale.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
    assert same_bytes(layer.weight, (packed.float() * factors).bfloat16())


def test_bytes_of_row_scales_are_powers_of_two():
    layer = make_layer("ColumnParallelLinear", "fp8", COLS, 64)
    packed = random_weight(64).to(FP8)
    scale = torch.full((64, 1), 130, dtype=torch.uint8)

    load_and_process(layer, [Item("weight", packed), Item("weight_scale", scale)])

    assert same_bytes(layer.weight, (packed.float() * 8).bfloat16())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (576,), (576, 1)], ids=str)
def test_scale_of_the_tensor_or_of_its_rows(shape: tuple[int, ...]):
    layer = make_layer("ColumnParallelLinear", "fp8", COLS, 576)
    weight = random_weight(576).clamp(-448, 448).to(FP8)
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.1
    items = [Item("weight", weight), Item("weight_scale", scale)]

    load_and_process(layer, items)

    rows = scale if scale.numel() == 1 else scale.reshape(-1, 1)
    assert same_bytes(layer.weight, (weight.float() * rows).bfloat16())


def test_every_fp8_code_is_exact():
    layer = make_layer("ReplicatedLinear", "fp8", 256, 128)
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
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200, params_dtype=dtype)
    packed, scale = quantize_fp8(random_weight(200))
    items = [Item("weight", packed), Item("weight_scale_inv", scale)]

    load_and_process(layer, items)

    blocks = scale[torch.arange(200) // 128][:, torch.arange(COLS) // 128]
    assert same_bytes(layer.weight, (packed.float() * blocks).to(dtype))


def test_scales_are_retired_and_empty():
    from vllm.model_executor.utils import get_live_param

    layer = make_fused("fp8")

    load_and_process(layer, fused((fp8, fp8)).items)

    for name in layer.quant_method.scale_names:
        assert get_live_param(layer, name) is None
        assert getattr(layer, name).isnan().all()


@pytest.mark.parametrize("first", FORMATS)
@pytest.mark.parametrize("second", FORMATS)
def test_direct_reload_equals_a_cold_start(first: str, second: str):
    layer = make_fused("fp8")
    load_and_process(layer, fused(FORMATS[first]).items)
    names = {name: param for name, param in layer.named_parameters()}
    addresses = {name: param.data_ptr() for name, param in names.items()}
    stored = fused(FORMATS[second], seed=7)

    direct_reload(layer, stored.items)

    cold = make_fused("fp8")
    load_and_process(cold, stored.items)
    assert same_bytes(layer.weight, stored.weight)
    for name, param in layer.named_parameters():
        assert param is names[name]
        assert param.data_ptr() == addresses[name]
        assert same_bytes(param, getattr(cold, name))


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("form", ["fp8", "bf16"])
def test_direct_reload_keeps_what_is_left_out(form: str, shard: int):
    layer, old = make_fused("fp8"), fused((fp8, fp8))
    load_and_process(layer, old.items)
    new = fused(FORMATS[form], seed=7)

    direct_reload(layer, [item for item in new.items if item.shard == shard])

    first = new if shard == 0 else old
    second = new if shard == 1 else old
    rows = SHARDS[0]
    expected = torch.cat((first.weight[:rows], second.weight[rows:]))
    assert same_bytes(layer.weight, expected)


def test_direct_reload_of_nothing_keeps_all():
    layer, stored = make_fused("fp8"), fused((fp8, fp8))
    load_and_process(layer, stored.items)

    direct_reload(layer, [])

    assert same_bytes(layer.weight, stored.weight)


def test_view_for_loading_changes_no_byte():
    layer = make_fused("fp8")
    load_and_process(layer, fused((fp8, fp8)).items)
    before = layer.weight.clone()

    layer.quant_method.view_for_loading(layer)

    assert layer.weight.dtype == FP8
    assert same_bytes(layer.weight.runtime_rows(), before)


def test_loading_without_any_view_works():
    layer, stored = make_fused("fp8"), fused((fp8, bf16), seed=7)
    load_and_process(layer, fused((fp8, fp8)).items)

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


@pytest.mark.parametrize("first", FORMATS)
def test_layerwise_reload_equals_a_cold_start(first: str):
    from vllm.model_executor.model_loader.reload import (
        record_metadata_for_reloading,
    )

    model = Model(make_fused("fp8"))
    record_metadata_for_reloading(model)
    load_and_process(model.layer, fused(FORMATS[first]).items)
    weight, address = model.layer.weight, model.layer.weight.data_ptr()

    for seed, second in enumerate((*FORMATS, *FORMATS)):
        stored = fused(FORMATS[second], seed=seed + 7)
        layerwise_reload(model, reversed(stored.items))

        assert model.layer.weight is weight
        assert model.layer.weight.data_ptr() == address
        assert same_bytes(model.layer.weight, stored.weight)


def test_direct_reload_after_layerwise_reload():
    from vllm.model_executor.model_loader.reload import (
        record_metadata_for_reloading,
    )

    model, stored = Model(make_fused("fp8")), fused((fp8, fp8), seed=7)
    record_metadata_for_reloading(model)
    load_and_process(model.layer, fused((fp8, fp8)).items)
    layerwise_reload(model, fused((fp8, bf16), seed=3).items)

    direct_reload(model.layer, stored.items)

    assert same_bytes(model.layer.weight, stored.weight)


def _model(layer: torch.nn.Module, items: Iterable[Item]) -> Model:
    from vllm.model_executor.model_loader.reload import (
        record_metadata_for_reloading,
    )

    model = Model(layer)
    record_metadata_for_reloading(model)
    load_and_process(model.layer, items)
    return model


def test_layerwise_reload_keeps_a_shard_that_is_left_out():
    old, new = fused((fp8, fp8)), fused((fp8, fp8), seed=7)
    model = _model(make_fused("fp8"), old.items)

    layerwise_reload(model, [item for item in new.items if item.shard == 0])

    rows = SHARDS[0]
    expected = torch.cat((new.weight[:rows], old.weight[rows:]))
    assert same_bytes(model.layer.weight, expected)


def test_layerwise_reload_of_the_bias_alone_keeps_the_weight():
    old = fp8(random_weight(200))
    bias = Item("bias", torch.ones(200).bfloat16())
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200, bias=True)
    model = _model(layer, [*old.items, bias])
    weight = model.layer.weight.clone()
    new = Item("bias", torch.full((200,), 2.0).bfloat16())

    layerwise_reload(model, [new])

    assert same_bytes(model.layer.weight, weight)
    assert model.layer.bias.eq(2).all()


@pytest.mark.parametrize("mode", ["layerwise", "direct"])
def test_a_scale_that_does_not_come_is_named_and_a_complete_reload_mends_it(mode: Any):
    from vllm.model_executor.model_loader.reload import (
        abort_reload,
        finish_reload,
        require_defined,
        start_reload,
    )

    new = fused((fp8, fp8), seed=7)
    model = _model(make_fused("fp8"), fused((fp8, fp8)).items)
    weight, address = model.layer.weight, model.layer.weight.data_ptr()
    config: Any = SimpleNamespace(dtype=torch.bfloat16)
    start_reload(model, mode)
    load(model.layer, [item for item in new.items if item.name == "weight"])

    with pytest.raises(
        RuntimeError, match=r"proj\.weight, shard 0: .*weight_scale_inv"
    ):
        finish_reload(model, config)

    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    for stored in (fused((bf16, bf16), seed=8), new):
        start_reload(model, mode)
        load(model.layer, stored.items)
        finish_reload(model, config)
        require_defined(model)
        assert same_bytes(model.layer.weight, stored.weight)
    abort_reload(model)
    assert model.layer.weight is weight
    assert model.layer.weight.data_ptr() == address


def test_unpacked_rows_that_lost_their_layout_are_refused():
    layer = make_fused("fp8")
    load(layer, fused((fp8, bf16)).items)

    layer.weight.data = layer.weight.data.clone()

    with pytest.raises(ValueError, match="shard 1: found rows that hold nothing"):
        process(layer)


def test_pre_processed_weights_are_kept():
    from vllm.model_executor.model_loader.weight_cache.ipc_loader import (
        _materialize_remaining_meta_tensors,
    )
    from vllm.model_executor.model_loader.weight_cache.protocol import (
        check_ipc_quant_support,
    )
    from vllm.model_executor.utils import weights_already_processed

    with torch.device("meta"):
        layer = make_fused("fp8")
    check_ipc_quant_support(layer)
    cached = torch.nn.Parameter(fused((fp8, fp8)).weight, requires_grad=False)
    layer.register_parameter("weight", cached)

    with weights_already_processed():
        process(layer)
    _materialize_remaining_meta_tensors(layer, torch.device("cpu"))
    process(layer)

    assert layer.weight is cached
    assert same_bytes(layer.weight, fused((fp8, fp8)).weight)


def test_pre_processed_rows_are_kept():
    from vllm.model_executor.utils import weights_already_processed

    layer, stored = make_fused("fp8"), fused((bf16, bf16))
    layer.weight.runtime_rows().copy_(stored.weight)

    with weights_already_processed():
        process(layer)
    process(layer)

    assert same_bytes(layer.weight, stored.weight)


def _columns(rank_items: list[Item], expected: torch.Tensor, kind: str, *sizes) -> bool:
    layer = make_layer(kind, "fp8", *sizes)
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
    layer = make_fused("fp8")
    load_and_process(layer, both.items)
    direct_reload(layer, both.items)
    results["disable_tp"] = same_bytes(layer.weight, both.weight)
    results |= _qkv(rank)
    return results


def _qkv(rank: int) -> dict[str, bool]:
    """Heads of 96 rows, and one key-value head that both ranks have."""
    parts = [
        fp8(random_weight(rows, seed=seed), shard)
        for seed, (rows, shard) in enumerate(((384, "q"), (96, "k"), (96, "v")))
    ]
    layer = make_layer("QKVParallelLinear", "fp8", COLS, 96, 4, 1)
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
        ("weight", _packed().view(torch.uint8), r"uint8.*expected torch.float8_e4m3fn"),
        ("weight", torch.zeros(400, COLS).bfloat16(), r"expected shape \(200, 320\)"),
        ("weight_scale_inv", torch.ones(3, 3), r"\(3, 3\).*expected shape \(2, 3\)"),
        ("weight_scale_inv", torch.ones(2, 3).to(FP8), r"another format"),
        ("weight_scale_inv", torch.full((2, 3), torch.nan), r"found NaN"),
        ("weight_scale", torch.ones(2, 3), r"\(2, 3\).*expected shape \(200, 1\)"),
        ("weight_scale", torch.tensor(torch.nan), r"found NaN"),
        ("input_scale", torch.ones(2), r"expected one element"),
    ],
)
def test_bad_tensors_are_refused(name: str, tensor: torch.Tensor, message: str):
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200)
    layer.weight.untyped_storage().fill_(7)

    with pytest.raises(ValueError, match=message):
        load(layer, [Item(name, tensor)])

    assert set(layer.weight.untyped_storage().tolist()) == {7}
    assert layer.weight_scale_inv.isnan().all()


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (["weight"], r"proj\.weight, shard 0: found.*no scale.*weight_scale_inv"),
        (["weight_scale_inv"], r"rows that hold nothing"),
        ([], r"rows that hold nothing"),
    ],
)
def test_half_a_pair_is_refused(kept: list[str], message: str):
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200)
    items = fp8(random_weight(200)).items
    load(layer, [item for item in items if item.name in kept])

    with pytest.raises(ValueError, match=message):
        process(layer)


def test_two_kinds_of_scale_are_refused():
    layer = make_layer("ReplicatedLinear", "fp8", COLS, 200)
    load(layer, fp8(random_weight(200)).items)
    load(layer, [Item("weight_scale", torch.tensor(1.0))])

    with pytest.raises(ValueError, match="weight_scale and weight_scale_inv"):
        process(layer)


@pytest.mark.parametrize("weight", ["absent", "bf16"])
def test_scale_without_packed_rows_is_refused_and_changes_nothing(weight: str):
    layer, stored = make_fused("fp8"), fused((fp8, fp8))
    load_and_process(layer, stored.items)
    items = [item for item in fused((fp8, fp8), seed=7).items if item.shard == 1]
    sent = [] if weight == "absent" else [Item("weight", stored.weight[192:], 1)]

    with pytest.raises(RuntimeError, match="no torch.float8.* for its weight_scale"):
        direct_reload(layer, [*sent, *(i for i in items if i.name != "weight")])

    assert same_bytes(layer.weight.runtime_rows(), stored.weight)


def test_scale_of_the_load_before_is_not_used_again():
    layer, stored = make_fused("fp8"), fused((fp8, fp8))
    load_and_process(layer, stored.items)

    with pytest.raises(RuntimeError, match="found.*weight with no scale"):
        direct_reload(layer, [i for i in stored.items if i.name == "weight"])


def test_names_of_checkpoints_find_their_parameter():
    method = make_fused("fp8").quant_method
    blocks, rows = torch.ones(2, 3), torch.ones(200, 1)

    assert method.parameter_for("weight_scale", blocks) == "weight_scale_inv"
    four = blocks[:, None, :, None]
    assert method.parameter_for("weight_scale", four) == "weight_scale_inv"
    assert method.parameter_for("weight_scale", rows) == "weight_scale"
    assert method.parameter_for("weight_scale", torch.tensor(1.0)) == "weight_scale"
    assert method.parameter_for("input_scale", torch.tensor(1.0)) == "input_scale"
    for name, tensor in (("weight_scale", rows.to(FP8)), ("k_scale", rows)):
        with pytest.raises(ValueError, match=f"found a checkpoint tensor '{name}'"):
            method.parameter_for(name, tensor)


def test_other_dtypes_of_the_model_are_refused():
    with pytest.raises(ValueError, match="found dtype torch.int8"):
        make_layer("ReplicatedLinear", "fp8", COLS, 200, params_dtype=torch.int8)
