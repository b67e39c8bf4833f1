# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What layers that unpack their checkpoint in place refuse."""

from collections.abc import Iterator

import pytest
import torch

from tests.quantization.dequant_layers import (
    COLS,
    SHARDS,
    Format,
    Item,
    bf16,
    fp8,
    layers_context,
    load,
    load_and_process,
    make_fused,
    make_layer,
    mxfp4,
    nvfp4,
    process,
    random_weight,
    same_bytes,
)

ROWS = sum(SHARDS)
every_packed = pytest.mark.parametrize("form", [fp8, nvfp4])


@pytest.fixture(scope="module", autouse=True)
def _context() -> Iterator[None]:
    with layers_context():
        yield


FUSED_ON_DISK = {
    "weight in bf16": ("weight", torch.ones(ROWS, COLS).bfloat16()),
    "weight in fp8": ("weight", torch.ones(ROWS, COLS).to(torch.float8_e4m3fn)),
    "weight in fp4": ("weight", torch.ones(ROWS, COLS // 2, dtype=torch.uint8)),
    "block scale": ("weight_scale_inv", torch.ones(7, 3)),
    "channel scale": ("weight_channel_scale", torch.ones(ROWS, 1)),
    "group scale": ("weight_scale", torch.ones(ROWS, 20).to(torch.float8_e4m3fn)),
}


@pytest.mark.parametrize("name", FUSED_ON_DISK)
@pytest.mark.parametrize("more", [-1, 1])
def test_fused_tensor_with_other_rows_is_refused(name: str, more: int):
    layer = make_fused()
    parameter, tensor = FUSED_ON_DISK[name]
    other = tensor[:-1] if more < 0 else torch.cat((tensor, tensor[:1]))
    found, expected = tuple(other.shape), len(tensor)

    with pytest.raises(ValueError, match=f"expected {expected} rows") as caught:
        load(layer, [Item(parameter, other)])

    assert str(caught.value).startswith(f"layers.0.proj.{parameter}: found")
    assert f"shape {found} for 2 shards at once" in str(caught.value)
    assert not any(layer.weight.record.held)
    assert not layer.weight.record.scales


def test_tensor_of_all_heads_with_other_rows_is_refused():
    layer = make_layer("QKVParallelLinear", COLS, 96, 4, 1)

    with pytest.raises(ValueError, match=r"found .*\(640, 320\).*expected 576 rows"):
        load(layer, [Item("weight", torch.ones(640, COLS).bfloat16())])


@pytest.mark.parametrize("form", [bf16, fp8, nvfp4])
def test_fused_tensors_of_all_shards_are_loaded(form: Format):
    layer = make_layer("MergedColumnParallelLinear", COLS, [128, 256], disable_tp=True)
    stored = form(random_weight(384))

    load_and_process(layer, stored.items)

    assert same_bytes(layer.weight, stored.weight)


@every_packed
def test_each_tensor_that_is_missing_is_named(form: Format):
    items = form(random_weight(200)).items
    for missing in items:
        layer = make_layer("ReplicatedLinear", COLS, 200)
        hold_nothing = missing.name == "weight"
        message = "hold nothing" if hold_nothing else f"expected it.*{missing.name}"
        load(layer, [item for item in items if item is not missing])

        with pytest.raises(ValueError, match=rf"proj\.weight, shard 0.*{message}"):
            process(layer)


def test_nothing_is_refused():
    with pytest.raises(ValueError, match="hold nothing"):
        process(make_layer("ReplicatedLinear", COLS, 200))


@pytest.mark.parametrize(
    ("form", "scale", "message"),
    [
        (fp8, ("weight_channel_scale", 1.0), "weight_channel_scale and weight_scale_i"),
        (fp8, ("weight_scale_2", 1.0), "weight_scale_2 and weight_scale_inv"),
        (nvfp4, ("weight_channel_scale", 1.0), "weight_channel_scale and weight_scale"),
        (mxfp4, ("weight_scale_2", 1.0), "weight_scale and weight_scale_2"),
        (bf16, ("weight_scale_2", 1.0), "no packed weight for its weight_scale_2"),
    ],
)
def test_scale_of_another_format_is_refused(
    form: Format, scale: tuple[str, float], message: str
):
    layer, (name, value) = make_layer("ReplicatedLinear", COLS, 200), scale
    load(layer, form(random_weight(200)).items)
    load(layer, [Item(name, torch.tensor(value))])

    with pytest.raises(ValueError, match=f"found .*{message}"):
        process(layer)


def test_scale_of_nvfp4_is_not_taken_for_one_of_fp8():
    layer = make_layer("ReplicatedLinear", COLS, 200)
    weight, four_bit = fp8(random_weight(200)), nvfp4(random_weight(200))
    load(layer, [weight.items[0], four_bit.items[1]])

    with pytest.raises(ValueError, match="float8_e4m3fn weight with weight_scale;"):
        process(layer)


def test_other_dtypes_of_the_model_are_refused():
    with pytest.raises(ValueError, match="found dtype torch.int8"):
        make_layer("ReplicatedLinear", COLS, 200, params_dtype=torch.int8)


def test_fused_scales_whose_blocks_two_shards_share_are_refused():
    layer = make_layer("MergedColumnParallelLinear", COLS, [200, 200], disable_tp=True)
    weight, scale = fp8(random_weight(400)).items

    load(layer, [weight])
    with pytest.raises(ValueError, match="do not end with their last blocks"):
        load(layer, [scale])

    assert not layer.weight.record.scales
