# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Upstream's style, applied to merged files."""

import os
from pathlib import Path

import pytest

from tools.series.style import lint, tidy

FILE = "vllm/a.py"
MESSY = "import sys\nimport os\nx={  'a':os }\n"
TIDY = 'import os\n\nx = {"a": os}\n'


def test_imports_are_sorted_or_dropped_and_code_formatted(tmp_path: Path):
    assert tidy({FILE: MESSY}, tmp_path) == {FILE: TIDY}


@pytest.mark.parametrize("name", ["build", "dist", ".venv", "node_modules"])
def test_the_surroundings_of_the_scratch_folder_do_not_matter(
    tmp_path: Path, name: str
):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "ruff.toml").write_text('line-length = 20\nexclude = ["*.py"]\n')
    path = f"{name}/{FILE}"

    assert tidy({path: MESSY}, tmp_path / name / "scratch") == {path: TIDY}
    (problem,) = lint({path: "x = y\n"}, tmp_path / name / "other")
    assert (problem.file, problem.message) == (
        path,
        "line 1 of the merged file: F821 Undefined name `y`",
    )


def test_line_ends_are_kept(tmp_path: Path):
    texts = {FILE: "x=1\r\n", "vllm/b.py": "x=1\n"}

    assert tidy(texts, tmp_path) == {FILE: "x = 1\r\n", "vllm/b.py": "x = 1\n"}


@pytest.mark.parametrize("verb", [tidy, lint])
def test_nothing_is_done_with_nothing(tmp_path: Path, verb):
    assert not verb({}, tmp_path)


def test_the_folder_may_be_given_by_another_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    monkeypatch.chdir(tmp_path)

    assert [p.file for p in lint({FILE: "y\n"}, Path("link/in"))] == [FILE, FILE]
