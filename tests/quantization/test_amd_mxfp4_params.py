# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""MXFP4 parameters of AMD kernels stay registered, and hold what they hold on stock."""

from pathlib import Path

import pytest

from tests.quantization.amd_mxfp4_layers import (
    run_all,
    run_kimi,
    run_muse_spark,
    run_rdna3,
)
from tests.quantization.keep_param_checks import Outcome
from tests.stock_vllm import run_on_stock


@pytest.fixture(scope="module")
def stock(stock_tree: Path) -> dict[str, Outcome]:
    """What upstream's release makes of the same layers."""
    return run_on_stock(stock_tree, run_all)


@pytest.mark.parametrize("run", [run_rdna3, run_kimi, run_muse_spark])
def test_parameters_hold_what_they_hold_on_stock(run, stock: dict[str, Outcome]):
    assert run().values == stock[run.__name__].values


@pytest.mark.parametrize("run", [run_rdna3, run_kimi])
def test_loaded_parameters_survive(run):
    assert run().losses == []


def test_online_experts_keep_the_object_and_release_the_source(
    stock: dict[str, Outcome],
):
    ours = run_muse_spark()

    assert ours.losses == [
        "w13_weight has a smaller storage",
        "w2_weight has a smaller storage",
    ]
    assert ours.nbytes == stock["run_muse_spark"].nbytes


def test_the_int4_experts_hold_no_more_than_on_stock(stock: dict[str, Outcome]):
    assert run_kimi().nbytes == stock["run_kimi"].nbytes


@pytest.mark.parametrize("name", ["weight", "weight_scale"])
def test_stock_registers_other_objects(name: str, stock: dict[str, Outcome]):
    assert f"{name} is another object" in stock["run_rdna3"].losses
