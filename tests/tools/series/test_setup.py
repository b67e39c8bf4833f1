# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``setup.py``, the build backend, as pip calls it."""

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tools.series.fake_series import COMPOSED, FakeSeries
from tools.series.__main__ import ROOT


@pytest.fixture
def repository(series: FakeSeries) -> Path:
    """The small series with this repository's tool and backend in it."""
    pytest.importorskip("pip")
    shutil.copytree(ROOT / "tools", series.root / "tools")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, series.root / name)
    return series.root


def _pip(*arguments: str, **surroundings: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    return subprocess.run(
        [*command, *arguments, "--no-deps", "--no-index", "--no-build-isolation"],
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pip_builds_the_flavour_asked_for_without_a_network(
    repository: Path, tmp_path: Path
):
    done = _pip(
        "wheel",
        str(repository),
        "--wheel-dir",
        str(tmp_path),
        VLLM_TARGET_DEVICE="cpu",
    )

    assert done.returncode == 0, done.stderr
    name = "vllm-1.2.3+reload.1.cpu-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert archive.read("vllm/_C.abi3.so") == b"compiled for the CPU"
        assert archive.read("vllm/ops.py").decode() == COMPOSED["vllm/ops.py"]


def test_pip_shows_why_a_build_fails(repository: Path, tmp_path: Path):
    (repository / "vllm/ops.py").write_text("print()\n")

    done = _pip("wheel", str(repository), "--wheel-dir", str(tmp_path))

    assert done.returncode == 1
    assert "vllm/ops.py: line 1 is `print()`" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_build_asks_for_pip_only_where_it_may_have_to_download(
    monkeypatch: pytest.MonkeyPatch,
):
    backend = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    requires = backend["get_requires_for_build_wheel"]

    monkeypatch.setenv("VLLM_PRECOMPILED_WHEEL_LOCATION", "here.whl")
    assert requires() == []
    monkeypatch.delenv("VLLM_PRECOMPILED_WHEEL_LOCATION")
    assert requires() == ["pip"]


def test_an_editable_install_is_refused(repository: Path, tmp_path: Path):
    done = _pip("install", "--target", str(tmp_path / "site"), "-e", str(repository))

    assert done.returncode == 1
    assert "the series cannot be installed as editable" in done.stdout + done.stderr
