# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Fixtures of the tests of the series tool."""

from pathlib import Path

import pytest

from tests.tools.series.fake_series import FakeSeries


@pytest.fixture
def series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSeries:
    """A small series, with its release installed where this process looks first."""
    fake = FakeSeries(tmp_path)
    monkeypatch.setenv("VLLM_PRECOMPILED_WHEEL_LOCATION", str(fake.wheels))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(fake.site)
    fake.install(fake.base)
    return fake
