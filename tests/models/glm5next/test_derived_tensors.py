# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What GLM-5-next derives from its weights follows them, at its first address."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.captured_reads import CapturedReads
from tests.glm5_tiny import (
    Architecture,
    Checkpoint,
    GlmModel,
    TinyGlm5,
    WeightFormat,
    load_from_disk,
    load_weights,
    make_checkpoint,
    write_checkpoint,
)
from vllm.model_executor.model_loader.reload import finish_reload, start_reload
from vllm.model_executor.model_loader.reload.audit import (
    compare,
    compare_models,
    take_census,
)

pytestmark = pytest.mark.usefixtures("glm5_process")

SPECS = [
    TinyGlm5(Architecture.CAUSAL, WeightFormat.BF16),
    TinyGlm5(Architecture.MTP, WeightFormat.BF16),
]
CASES = [
    pytest.param(SPECS[0], "layerwise", 1, id="causal-layerwise"),
    pytest.param(SPECS[0], "direct", 1, id="causal-direct"),
    pytest.param(SPECS[0], "direct", 7, id="causal-direct-7-calls"),
    # Its loader wants the whole layer in one call.
    pytest.param(SPECS[1], "layerwise", 1, id="mtp-layerwise"),
    pytest.param(SPECS[1], "direct", 1, id="mtp-direct"),
]
FolderOf = Callable[[TinyGlm5], Path]


def _id(spec: TinyGlm5) -> str:
    return str(spec.architecture)


@contextmanager
def _engine_context(model: GlmModel) -> Iterator[None]:
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    with (
        set_current_vllm_config(model.vllm_config),
        set_default_torch_dtype(torch.bfloat16),
    ):
        yield


def _reload(model: GlmModel, checkpoint: Checkpoint, mode: Any, calls: int = 1) -> None:
    weights = list(checkpoint.weights)
    size = -(-len(weights) // calls)
    with _engine_context(model):
        start_reload(model.module, mode)
        for start in range(0, len(weights), size):
            load_weights(model, [weights[start : start + size]])
        finish_reload(model.module, model.model_config)


def _derived_paths(model: GlmModel) -> list[str]:
    attributes = {
        "Indexer": "_wp_fp32",
        "Glm5NextLinearAttention": "_merged_conv_weight",
    }
    return [
        f"{name}.{attributes[type(module).__name__]}"
        for name, module in model.module.named_modules()
        if type(module).__name__ in attributes
    ]


@pytest.mark.parametrize("spec", SPECS, ids=_id)
def test_a_cold_start_makes_what_the_first_forward_pass_reads(
    spec: TinyGlm5, checkpoint_folder: FolderOf
):
    model = load_from_disk(spec, checkpoint_folder(spec))

    modules = dict(model.module.named_modules())
    for path in _derived_paths(model):
        module: Any = modules[path.rpartition(".")[0]]
        if path.endswith("_wp_fp32"):
            gate = module.wk_weights_proj.weight[module.head_dim :].float()
            assert torch.equal(module._wp_fp32, gate.t())
            assert module._wp_fp32.is_contiguous()
        else:
            convs = (module.q_conv1d, module.k_conv1d, module.v_conv1d)
            parts = module._merged_conv_weight.split(
                [conv.weight.shape[0] for conv in convs]
            )
            for part, conv in zip(parts, convs, strict=True):
                assert torch.equal(part, conv.weight[:, 0])


@pytest.mark.parametrize(("spec", "mode", "calls"), CASES)
def test_captured_reads_follow_three_reloads(
    spec: TinyGlm5,
    mode: str,
    calls: int,
    checkpoint_folder: FolderOf,
    tmp_path: Path,
):
    model = load_from_disk(spec, checkpoint_folder(spec))
    captured = CapturedReads(model.module, _derived_paths(model))
    before = take_census(model.module)

    for seed in (1, 2, 3):
        checkpoint = make_checkpoint(spec, seed=seed)
        _reload(model, checkpoint, mode, calls)

        assert not captured.differences()
    after = take_census(model.module)
    moved = [f for f in compare(before, after).findings if f.kind != "changed"]
    assert not moved, moved
    folder = write_checkpoint(tmp_path / "last", spec, checkpoint.tensors)
    cold = load_from_disk(spec, folder)
    report = compare_models(after, take_census(cold.module))
    assert report.ok, report.to_table()


def test_what_a_direct_reload_leaves_out_is_derived_from_the_weights_that_stay(
    checkpoint_folder: FolderOf,
):
    spec = SPECS[0]
    model = load_from_disk(spec, checkpoint_folder(spec))
    paths = _derived_paths(model)
    captured = CapturedReads(model.module, paths)
    census = take_census(model.module).by_name
    weights = [w for w in make_checkpoint(spec, seed=1).weights if "norm" in w[0]]
    assert weights

    with _engine_context(model):
        start_reload(model.module, "direct")
        load_weights(model, [weights])
        finish_reload(model.module, model.model_config)

    assert not captured.differences()
    after = take_census(model.module).by_name
    assert all(after[path].digest == census[path].digest for path in paths)
