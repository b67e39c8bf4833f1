# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The reload audit on a toy model: every planted fault is listed, and nothing else."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.model_executor.model_loader.toy_quantized_model import (
    GSCALE,
    add_attribute,
    change_dtype,
    drop_buffer,
    enlarge_storage,
    flip_bit,
    move_buffer,
    rebind_parameter,
    replace_attribute,
    replace_kernel,
    replace_kernel_tensor,
    replace_quant_config_tensor,
    shrink_view,
    toy_model,
    transpose_in_place,
    turn_buffer_into_attribute,
)
from vllm.model_executor.model_loader.reload.audit import (
    Census,
    compare,
    compare_models,
    main,
    take_census,
)

AUDIT = "vllm.model_executor.model_loader.reload.audit"
FAULTS = [
    (rebind_parameter, "0.weight", {"rebound", "moved"}),
    (move_buffer, "0.scale", {"moved"}),
    (replace_attribute, "0.folded", {"rebound", "moved"}),
    (replace_kernel_tensor, "0.quant_method.kernel.strides", {"rebound", "moved"}),
    (replace_quant_config_tensor, GSCALE, {"rebound", "moved"}),
    (replace_kernel, "0.quant_method.kernel.strides", {"rebound", "moved"}),
    (transpose_in_place, "0.weight", {"mismatched"}),
    (flip_bit, "0.weight", {"changed"}),
    (drop_buffer, "0.scale", {"missing"}),
    (add_attribute, "0.kept", {"new"}),
    (enlarge_storage, "0.weight", {"moved", "resized"}),
    (change_dtype, "0.weight", {"mismatched"}),
    (turn_buffer_into_attribute, "0.scale", {"mismatched"}),
    (shrink_view, "0.weight", {"resized", "mismatched"}),
]
GROWING = (add_attribute, enlarge_storage)


@pytest.mark.parametrize(
    "plant, name, kinds", FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS]
)
def test_a_planted_fault_is_listed_under_its_name_and_nothing_else_is(
    plant: Callable[[torch.nn.Module], None], name: str, kinds: set[str]
):
    model = toy_model()
    before = take_census(model)

    plant(model)
    report = compare(before, take_census(model))

    found = {(finding.kind, finding.name) for finding in report.findings}
    growth = {("grown", "cpu")} if plant in GROWING else set()
    assert found == {(kind, name) for kind in kinds} | growth
    assert not report.ok


def test_nothing_is_listed_for_an_untouched_model():
    model = toy_model()

    report = compare(take_census(model), take_census(model))

    assert report.ok
    assert report.findings == ()
    assert report.to_table() == report.summary
    assert report.summary.startswith(
        "no difference; audited 2 parameters, 2 buffers, 2 attr"
    )


def test_models_compare_with_a_census_of_another_process(tmp_path: Path):
    path = tmp_path / "cold.json"
    script = (
        "import sys, torch\n"
        f"from {AUDIT} import take_census\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model.weight.data.fill_(1), model.bias.data.fill_(2)\n"
        "take_census(model).save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    warm = torch.nn.Linear(2, 2)
    warm.weight.data.fill_(1)
    warm.bias.data.fill_(2)

    cold = Census.load(path)

    assert compare_models(warm, cold).ok
    with pytest.raises(ValueError, match="two processes.*compare_models"):
        compare(cold, take_census(warm))


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """Paths of a census of a toy model, of the same one again, and of a faulty one."""
    model = toy_model()
    paths = [str(tmp_path / name) for name in ("before", "again", "faulty")]
    take_census(model).save(paths[0])
    take_census(model).save(paths[1])
    flip_bit(model)
    take_census(model).save(paths[2])
    return paths


@pytest.mark.parametrize("options", [[], ["--models"]])
def test_command_line_exits_0_on_equal_and_1_on_different_censuses(
    saved, options, capsys
):
    assert main([*options, saved[0], saved[1]]) == 0
    assert capsys.readouterr().out.startswith("no difference")
    assert main([*options, saved[0], saved[2]]) == 1
    table = capsys.readouterr().out
    assert "finding" in table and "changed" in table and "0.weight" in table


def test_command_line_prints_json(saved, capsys):
    assert main(["--json", saved[0], saved[2]]) == 1

    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert [f["name"] for f in report["findings"]] == ["0.weight"]


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"records": []}', "\xff"])
def test_command_line_exits_2_on_bad_input(saved, tmp_path, content, capsys):
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content.encode("latin-1"))

    assert main([saved[0], str(bad)]) == 2
    assert "bad.json" in capsys.readouterr().err


def test_command_line_runs_as_a_module(saved):
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", AUDIT]

    finished = subprocess.run([*command, saved[0], saved[2]], capture_output=True)

    assert finished.returncode == 1
    assert b"changed" in finished.stdout
