# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The reload audit on vLLM's own GLM-5.x, with a real experts object in its kernel."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.glm5_tiny import (
    Architecture,
    Experts,
    TinyGlm5,
    WeightFormat,
    load_from_disk,
    make_checkpoint,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)
from vllm.model_executor.model_loader.reload.audit import (
    compare,
    compare_models,
    take_census,
)

SPEC = TinyGlm5(Architecture.CAUSAL, WeightFormat.BF16, experts=Experts.BF16)
ATTENTION = "model.layers.1.self_attn"
MLA = f"{ATTENTION}.mla_attn.mla_attn"
EXPERTS = "model.layers.1.mlp.experts.routed_experts"
FUSED_EXPERTS = f"{EXPERTS}.quant_method.moe_kernel.impl.fused_experts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint, for as long as models of it can be built."""
    checkpoint = make_checkpoint(SPEC, seed=0)
    path = tmp_path_factory.mktemp("glm5")
    write_checkpoint(path, SPEC, checkpoint.tensors)
    with use_cuda_like_cpu_platform(), tensor_parallel_group():
        yield path


def load(folder: Path) -> Any:
    model = load_from_disk(SPEC, folder).module
    experts: Any = model.get_submodule(EXPERTS)
    experts.quant_method.moe_kernel = cutlass_kernel(experts)
    return model


@pytest.fixture
def model(folder: Path) -> torch.nn.Module:
    return load(folder)


def cutlass_kernel(layer: Any) -> Any:
    """vLLM's own kernel and FP8 experts, whose constants are in no module."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
    from vllm.model_executor.layers.fused_moe.experts.cutlass_moe import (
        CutlassExpertsFp8,
    )
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel
    from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import (
        MoEPrepareAndFinalizeNoDPEPModular,
    )

    config = fp8_w8a8_moe_quant_config(
        w1_scale=torch.ones(4, 256, 1),
        w2_scale=torch.ones(4, 256, 1),
        per_act_token_quant=True,
        per_out_ch_quant=True,
        a1_gscale=torch.ones(4),
    )
    experts = CutlassExpertsFp8(layer.moe_config, config)
    return FusedMoEKernel(MoEPrepareAndFinalizeNoDPEPModular(), experts)


def rebind_parameter(model: Any) -> None:
    layer = model.get_submodule(f"{ATTENTION}.o_proj")
    layer.weight = torch.nn.Parameter(layer.weight.data.clone(), requires_grad=False)


def move_buffer(model: Any) -> None:
    buffer = model.get_buffer(f"{MLA}._q_scale")
    buffer.data = buffer.data.clone()


def replace_attribute(model: Any) -> None:
    attention = model.get_submodule(MLA)
    attention._k_scale_cpu = attention._k_scale_cpu.clone()


def replace_experts_constant(model: Any) -> None:
    experts = model.get_submodule(EXPERTS).quant_method.moe_kernel.fused_experts
    experts.ab_strides2 = experts.ab_strides2.clone()


def replace_quant_config_tensor(model: Any) -> None:
    experts = model.get_submodule(EXPERTS).quant_method.moe_kernel.fused_experts
    experts.quant_config._a1.alpha_or_gscale = torch.ones(4)


def transpose_in_place(model: Any) -> None:
    weight = model.get_parameter(f"{ATTENTION}.q_b_proj.weight")
    weight.data = weight.data.t()


def flip_bit(model: Any) -> None:
    model.get_parameter(f"{EXPERTS}.w13_weight").data.view(torch.uint8)[3, 2, 1] ^= 1


def drop_parameter(model: Any) -> None:
    del model.get_submodule(f"{ATTENTION}.q_a_layernorm").weight


def add_tensor(model: Any) -> None:
    model.get_submodule(EXPERTS).quant_method.kept = torch.zeros(4)


REPLACED = {"rebound", "moved"}
FAULTS = [
    (rebind_parameter, f"{ATTENTION}.o_proj.weight", REPLACED | {"mismatched"}),
    (move_buffer, f"{MLA}._q_scale", {"moved"}),
    (replace_attribute, f"{MLA}._k_scale_cpu", REPLACED),
    (replace_experts_constant, f"{FUSED_EXPERTS}.ab_strides2", REPLACED),
    (
        replace_quant_config_tensor,
        f"{FUSED_EXPERTS}.quant_config._a1.alpha_or_gscale",
        REPLACED,
    ),
    (transpose_in_place, f"{ATTENTION}.q_b_proj.weight", {"mismatched"}),
    (flip_bit, f"{EXPERTS}.w13_weight", {"changed"}),
    (drop_parameter, f"{ATTENTION}.q_a_layernorm.weight", {"missing"}),
    (add_tensor, f"{EXPERTS}.quant_method.kept", {"new"}),
]


@pytest.mark.parametrize(
    "plant, name, kinds", FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS]
)
def test_a_planted_fault_is_listed_under_its_name_and_nothing_else_is(
    model: torch.nn.Module,
    plant: Callable[[torch.nn.Module], None],
    name: str,
    kinds: set[str],
):
    before = take_census(model)

    plant(model)
    report = compare(before, take_census(model))

    growth = {("grown", "cpu")} if plant is add_tensor else set()
    found = {(finding.kind, finding.name) for finding in report.findings}
    assert found == {(kind, name) for kind in kinds} | growth


def test_nothing_is_listed_for_an_untouched_model(model):
    report = compare(take_census(model), take_census(model))

    assert report.ok, report.to_table()


def test_nothing_is_listed_for_two_cold_starts(model, folder):
    report = compare_models(model, load(folder))

    assert report.ok, report.to_table()


def test_every_registered_name_is_recorded(model):
    recorded = take_census(model, digest=False).by_name

    registered = {
        *(name for name, _ in model.named_parameters(remove_duplicate=False)),
        *(name for name, _ in model.named_buffers(remove_duplicate=False)),
    }
    assert registered <= set(recorded)


def test_the_kernel_is_off_tree(model):
    recorded = take_census(model, digest=False).by_name

    assert recorded[f"{FUSED_EXPERTS}.c_strides1"].kind == "off-tree"
    assert recorded[f"{FUSED_EXPERTS}.ab_strides1"].names == {
        f"{FUSED_EXPERTS}.ab_strides1": "off-tree",
        f"{FUSED_EXPERTS}.c_strides2": "off-tree",
    }
