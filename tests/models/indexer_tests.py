# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What holds of every model with a DeepSeek-V3.2 indexer.

A test module subclasses `IndexerTests`, and has a fixture `model` that gives it each
`IndexerModel`.
"""

import itertools

import pytest
import torch

from tests.glm5_tiny import GlmModel, process_weights, reload_in_mode, tensors_of
from tests.models.tiny_indexer import (
    FP8_CONFIG,
    IndexerModel,
    Stored,
    build,
    each_alone,
    fault,
    load,
    store,
)

ORDERS = list(itertools.permutations(store().tensors))
SCALE = "wk.weight_scale_inv"


def _load_and_process(model: IndexerModel, stored: Stored) -> GlmModel:
    built = build(model)
    load(built, each_alone(model, stored))
    process_weights(built)
    return built


class IndexerTests:
    """Weights and scales of `wk` and `weights_proj`, each in a call of its own."""

    @pytest.mark.parametrize("order", ORDERS, ids="-".join)
    def test_any_order_is_exact(self, model: IndexerModel, order: tuple[str, ...]):
        stored = store()
        tensors = {name: stored.tensors[name] for name in order}

        built = _load_and_process(model, Stored(tensors, stored.weight))

        assert fault(built, model.layer, stored) == ""

    @pytest.mark.parametrize(
        "fp8", [(), ("weights_proj",), ("wk", "weights_proj")], ids="+".join
    )
    def test_other_shards_in_fp8_are_exact(
        self, model: IndexerModel, fp8: tuple[str, ...]
    ):
        stored = store(fp8)

        built = _load_and_process(model, stored)

        assert fault(built, model.layer, stored) == ""

    def test_bf16_counts_the_scales_as_loaded_that_it_does_not_need(
        self, model: IndexerModel
    ):
        built = build(model)

        loaded = load(built, each_alone(model, store(fp8=())))

        named = {name for name, _ in built.module.named_parameters()}
        of_layer = {name for name in named if name.startswith(f"{model.layer}.")}
        assert f"{model.layer}.weight_scale_inv" in of_layer
        assert of_layer <= loaded <= named

    @pytest.mark.parametrize("quantized", [True, False])
    def test_unquantized_indexer_is_exact(self, model: IndexerModel, quantized: bool):
        ignored = [f"{model.source}.{shard}" for shard in ("wk", "weights_proj")]
        before = FP8_CONFIG["modules_to_not_convert"]
        quantization = {**FP8_CONFIG, "modules_to_not_convert": [*before, *ignored]}
        stored = store(fp8=())
        built = build(model, quantization if quantized else None)

        load(built, each_alone(model, stored))
        process_weights(built)

        assert fault(built, model.layer, stored) == ""

    def test_weight_without_its_scale_is_refused(self, model: IndexerModel):
        stored = store()
        del stored.tensors[SCALE]

        with pytest.raises(ValueError, match="shard 0: .*with no scale; expected") as e:
            _load_and_process(model, stored)

        assert "indexer.wk_weights_proj.weight" in str(e.value)

    def test_scale_of_another_shape_is_refused_by_name(self, model: IndexerModel):
        stored = store()
        stored.tensors[SCALE] = torch.ones(3, 5)

        with pytest.raises(ValueError, match=r"found .*\(3, 5\).*expected") as e:
            load(build(model), each_alone(model, stored))

        tensor = f"{model.source}.{SCALE}".removeprefix("model.")
        assert f"{tensor}: " in str(e.value)
        assert "indexer.wk_weights_proj.weight_scale_inv" in str(e.value)

    def test_fp8_in_a_checkpoint_that_declares_none_is_refused(
        self, model: IndexerModel
    ):
        with pytest.raises(ValueError, match="float8_e4m3fn.*expected") as e:
            load(build(model, None), each_alone(model, store()))

        tensor = f"{model.source}.wk.weight".removeprefix("model.")
        assert f"{tensor}: " in str(e.value)
        assert "indexer.wk_weights_proj.weight" in str(e.value)

    @pytest.mark.parametrize("mode", ["layerwise", "direct"])
    def test_reload_is_exact_in_place(self, model: IndexerModel, mode: str):
        if model.unreloadable:
            pytest.skip(model.unreloadable)
        built = _load_and_process(model, store())
        before = tensors_of(built.module)[f"{model.layer}.weight"].data_ptr()
        second = store(seed=1)

        # A layerwise reload keeps what it was sent until a layer is complete.
        calls = each_alone(model, second, overwrite=mode == "direct")
        reload_in_mode(built, calls, mode)

        assert fault(built, model.layer, second) == ""
        after = tensors_of(built.module)[f"{model.layer}.weight"].data_ptr()
        assert after == before
