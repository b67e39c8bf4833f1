# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A rebuilt experts object reads its constants where the first one did."""

import ast
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import vllm
from tests.model_executor.layers.fused_moe.kept_constants_cases import (
    NUM_EXPERTS,
    accelerator,
    cases,
    scales,
)
from tests.stock_vllm import run_on_stock
from vllm.model_executor.layers.fused_moe.oracle.fp8 import (
    Fp8MoeBackend,
    make_fp8_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import (
    NvFp4MoeBackend,
    make_nvfp4_moe_quant_config,
)
from vllm.model_executor.layers.quantization.quark.quark_moe import (
    QuarkW8A8Fp8MoEMethod,
)

RUNS = range(3)


@pytest.fixture(autouse=True)
def _accelerator() -> Iterator[None]:
    with accelerator():
        yield


class Constant(NamedTuple):
    """A constant as a captured graph knows it, and its value."""

    address: int
    dtype: torch.dtype
    value: list


def _layer(run: int) -> torch.nn.Module:
    """A layer with what the post-load step of NVFP4 experts reads."""
    layer = torch.nn.Module()
    for name in ("w13_weight_scale_2", "w2_weight_scale_2"):
        layer.register_parameter(name, torch.nn.Parameter(torch.ones(NUM_EXPERTS)))
    for name, scale in zip(("w13", "w2"), scales(run, 2), strict=True):
        setattr(layer, f"{name}_input_scale", scale)
    return layer


def _fill_scales(layer: torch.nn.Module, experts: Any) -> None:
    """Loads what the quant config of the experts was made of."""
    config = experts.quant_config
    with torch.no_grad():
        layer.w13_weight_scale_2.copy_(config.g1_alphas)
        layer.w2_weight_scale_2.copy_(config.g2_alphas)
    config._w1.alpha_or_gscale = layer.w13_weight_scale_2
    config._w2.alpha_or_gscale = layer.w2_weight_scale_2


def _build(name: str, run: int, layer: torch.nn.Module) -> dict[str, Constant]:
    """One run of post-load processing, as far as it concerns the experts object."""
    case = cases()[name]
    experts = case.make(run)
    if hasattr(experts, "keep_constants"):  # Stock vLLM has no such method.
        experts.keep_constants(layer)
    if case.has_step:
        _fill_scales(layer, experts)
        experts.process_weights_after_loading(layer)
    layer.experts_of_all_runs = [*getattr(layer, "experts_of_all_runs", ()), experts]
    constants = {path: attrgetter(path)(experts) for path in case.constants}
    return {
        path: Constant(tensor.data_ptr(), tensor.dtype, tensor.tolist())
        for path, tensor in constants.items()
    }


def moved_constants() -> dict[str, set[str]]:
    """For each case, the constants whose address changes when they are made anew."""
    moved = {}
    with accelerator():
        for name in cases():
            layer = _layer(0)
            first = _build(name, 0, layer)
            again = _build(name, 1, layer)
            moved[name] = {p for p in first if first[p].address != again[p].address}
    return moved


@pytest.mark.parametrize("name", cases())
def test_rebuilt_experts_keep_the_first_addresses_and_have_new_values(name: str):
    layer, first = _layer(0), None

    for run in RUNS:
        built = _build(name, run, layer)
        fresh = _build(name, run, _layer(0))

        first = first or built
        assert {p: c.address for p, c in built.items()} == {
            p: c.address for p, c in first.items()
        }
        assert {p: c[1:] for p, c in built.items()} == {
            p: c[1:] for p, c in fresh.items()
        }


def test_constants_are_apart_from_the_parameters_of_the_layer():
    layer = _layer(0)

    _build("nvfp4-step", 0, layer)

    names = {"g1_scale_c", "gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta"}
    assert names < dict(layer.named_parameters()).keys()
    for name in names:
        assert getattr(layer, f"_kept_{name}") is not getattr(layer, name)


def test_parameters_of_the_post_load_step_stay_the_same_objects():
    layer = _layer(0)
    _build("nvfp4-step", 0, layer)
    first = dict(layer.named_parameters())

    _build("nvfp4-step", 1, layer)

    assert {n: id(p) for n, p in layer.named_parameters()} == {
        n: id(p) for n, p in first.items()
    }


def test_experts_without_constants_keep_none():
    from vllm.model_executor.layers.fused_moe.experts.trtllm_nvfp4_moe import (
        TrtLlmNvFp4ExpertsModular,
    )

    layer = torch.nn.Module()
    experts = cases()["nvfp4-modular"].make(0)
    assert isinstance(experts, TrtLlmNvFp4ExpertsModular)
    for name in experts.kept_constants:
        setattr(experts, name, None)

    experts.keep_constants(layer)

    assert not [name for name in vars(layer) if name.startswith("_kept_")]


@pytest.mark.parametrize("backend", ["FLASHINFER_CUTLASS", "HPC"])
def test_fp8_scales_of_the_quant_config_keep_their_addresses(backend: str):
    layer = torch.nn.Module()
    made = []

    for run in RUNS:
        w1, w2, a1, a2 = scales(run, 4)
        config = make_fp8_moe_quant_config(
            Fp8MoeBackend[backend], w1, w2, a1, a2, layer=layer
        )
        expected = w1 * a1, w2 * a2, 1.0 / a1, 1.0 / a2
        held = config.g1_alphas, config.g2_alphas, config.a1_gscale, config.a2_gscale
        made.append([tensor.data_ptr() for tensor in held])
        assert all(torch.equal(*pair) for pair in zip(held, expected, strict=True))

    assert made == [made[0]] * len(RUNS)
    assert config.g1_alphas is layer.g1_alphas


@pytest.mark.parametrize("backend", ["FLASHINFER_CUTLASS", "HPC"])
def test_quark_has_its_layer_hold_the_scales_of_the_quant_config(backend: str):
    method: Any = QuarkW8A8Fp8MoEMethod.__new__(QuarkW8A8Fp8MoEMethod)
    method.fp8_backend = Fp8MoeBackend[backend]
    method.weight_block_size = None
    method.input_qscheme = method.weight_qscheme = "per_tensor"
    layer: Any = torch.nn.Module()
    made = []

    for run in RUNS:
        w1, w2, a1, a2 = scales(run, 4)
        layer.w13_weight_scale, layer.w2_weight_scale = w1, w2
        layer.w13_input_scale, layer.w2_input_scale = a1, a2
        config = method.get_fused_moe_quant_config(layer)
        expected = w1 * a1, w2 * a2, 1.0 / a1, 1.0 / a2
        held = config.g1_alphas, config.g2_alphas, config.a1_gscale, config.a2_gscale
        made.append([tensor.data_ptr() for tensor in held])
        assert all(torch.equal(*pair) for pair in zip(held, expected, strict=True))

    assert made == [made[0]] * len(RUNS)


@pytest.mark.parametrize(
    "backend", ["FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "VLLM_CUTLASS"]
)
def test_nvfp4_activation_scales_of_the_quant_config_keep_their_addresses(
    backend: str,
):
    layer = torch.nn.Module()
    made = []

    for run in RUNS:
        w1, w2, g1, g2, a1, a2 = scales(run, 6)
        config = make_nvfp4_moe_quant_config(
            NvFp4MoeBackend[backend], w1, w2, g1, g2, a1, a2, layer=layer
        )
        held = config.a1_gscale, config.a2_gscale
        made.append([tensor.data_ptr() for tensor in held])
        assert all(
            torch.equal(*pair) for pair in zip(held, (1.0 / a1, 1.0 / a2), strict=True)
        )

    assert made == [made[0]] * len(RUNS)


def test_quant_configs_without_a_layer_hold_their_own_scales():
    w1, w2, g1, g2, a1, a2 = scales(0, 6)

    config = make_nvfp4_moe_quant_config(
        NvFp4MoeBackend.FLASHINFER_TRTLLM, w1, w2, g1, g2, a1, a2
    )

    assert torch.equal(config.a1_gscale, 1.0 / a1)
    assert torch.equal(config.a2_gscale, 1.0 / a2)


ONCE_OR_WITHOUT_CONSTANTS = {
    "UnquantizedFusedMoEMethod._init_moe_kernel",
    # Their base registers the one constant as a parameter, in place.
    "MuseSparkModelOptNvFp4FusedMoE.process_weights_after_loading",
    "MuseSparkModelOptNvFp4FusedMoE._process_hopper_marlin_weights",
}


def test_every_method_that_makes_a_kernel_keeps_its_constants():
    makes = {
        f"{owner.name}.{function.name}": ast.unparse(function)
        for path in Path(vllm.__path__[0]).rglob("*.py")
        if "self.moe_kernel = " in (text := path.read_text(encoding="utf-8"))
        for owner in ast.walk(ast.parse(text))
        if isinstance(owner, ast.ClassDef)
        for function in owner.body
        if isinstance(function, ast.FunctionDef)
    }
    makes = {
        name: text
        for name, text in makes.items()
        if "self.moe_kernel = make_" in text or "self.moe_kernel = mk." in text
    }

    assert len(makes) > 20
    forgetful = {name for name in makes if ".keep_constants(layer)" not in makes[name]}
    assert forgetful == ONCE_OR_WITHOUT_CONSTANTS


def test_stock_moves_every_constant(stock_tree: Path):
    moved = run_on_stock(stock_tree, moved_constants)

    assert moved == {name: set(case.constants) for name, case in cases().items()}
