# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""One upstream text merged with one delta."""

import tempfile
from pathlib import Path
from textwrap import dedent

from tools.series.merge import merge
from tools.series.style import tidy

FILE = "vllm/module.py"

UPSTREAM = """\
# licence

import os


class Shape:
    sides = 0

    def area(self):
        return os.name  # a remark


def double(x):
    return 2 * x


def halve(x):
    return x / 2
"""


def merged(upstream: str, delta: str) -> str:
    """The merged and formatted text; fails where there is a fault.

    Args:
        upstream: Upstream's source, indented as suits the test.
        delta: The delta's source, likewise.
    """
    text, problems = merge(FILE, dedent(upstream), dedent(delta))
    assert not problems, "\n".join(map(str, problems))
    with tempfile.TemporaryDirectory() as folder:
        return tidy({FILE: text}, Path(folder))[FILE]


def expect(upstream: str, delta: str, expected: str) -> None:
    """Compares a merged text with the expected one, given with any indentation."""
    assert merged(upstream, delta) == dedent(expected).lstrip("\n")


def faults(upstream: str, delta: str) -> list[str]:
    """The faults of a delta, as they are printed, without the file's name."""
    _, problems = merge(FILE, dedent(upstream), dedent(delta))
    lines = [str(problem) for problem in problems]
    assert all(line.startswith(f"{FILE}: ") for line in lines), lines
    return [line.removeprefix(f"{FILE}: ") for line in lines]


def fault(upstream: str, delta: str) -> str:
    """The one fault of a delta."""
    (line,) = faults(upstream, delta)
    return line
