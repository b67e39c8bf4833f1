# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The version of the wheel."""

from dataclasses import replace

import pytest

from tests.tools.series.fake_series import FakeSeries
from tools.series.base import load_pin
from tools.series.version import is_series_version, version_source, wheel_version


@pytest.mark.parametrize(
    ("device", "expected"),
    [("", "1.2.3+reload.1"), ("cuda", "1.2.3+reload.1"), ("cpu", "1.2.3+reload.1.cpu")],
)
def test_the_version_names_the_series_and_the_flavour(
    series: FakeSeries, device: str, expected: str
):
    assert wheel_version(load_pin(series.root), device) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.2.3+reload.1", True),
        ("1.2.3+reload.0.cpu", True),
        ("1.2.3", False),
        ("1.2.3+cu130", False),
        ("1.2.3+reloaded", False),
        ("1.2.4+reload.1", False),
    ],
)
def test_a_version_of_the_series_is_told_from_others(
    series: FakeSeries, version: str, expected: bool
):
    assert is_series_version(version, load_pin(series.root)) is expected


def test_the_version_file_gets_the_wheel_s_version(series: FakeSeries):
    pin = replace(load_pin(series.root), version="0.1.0")
    upstream = "# generated\nversion = '0.1.0'\nversion_tuple = (0, 1, 0)\n"

    assert version_source(upstream, pin, "0.1.0+reload.2.cpu") == (
        "# generated\nversion = '0.1.0+reload.2.cpu'\n"
        "version_tuple = (0, 1, 0, 'reload.2.cpu')\n"
    )
