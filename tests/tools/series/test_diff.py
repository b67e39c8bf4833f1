# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``diff``: one unified diff that git takes."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools.series.fake_series import FakeSeries, tree


def test_the_diff_shows_the_change_and_nothing_else(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    assert series.run("diff") == 0
    assert (
        """\
diff --git a/vllm/ops.py b/vllm/ops.py
--- a/vllm/ops.py
+++ b/vllm/ops.py
@@ -1,5 +1,5 @@
 def scale(x):
-    return 2 * x
+    return 3 * x
 
 
 def shift(x):
"""
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "text",
    ["", "x = 1", "x = 'ü'\n", "a\x0cb\n", "a\u2028b\nc\x85d\n", "a\rb\r\n", "\n\n"],
    ids=["empty", "no newline", "text", "form feed", "separators", "returns", "blank"],
)
def test_git_apply_gives_the_composed_tree(
    series: FakeSeries, capsys: pytest.CaptureFixture, tmp_path: Path, text: str
):
    for name in ("vllm/kernels/fast/gemm.py", "vllm/kernels/tiles.json"):
        (series.root / name).write_bytes(text.encode())
    series.run("diff")
    diff = capsys.readouterr().out
    series.run("compose", str(tmp_path / "composed"))
    shutil.rmtree(series.root / "vllm")
    series.write("docs/series.md", "")
    series.run("compose", str(tmp_path / "applied"))

    subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path / "applied", input=diff.encode(), check=True
    )

    assert tree(tmp_path / "applied") == tree(tmp_path / "composed")


def test_only_what_is_named_is_printed(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    assert series.run("diff", "vllm/kernels/") == 0
    of_folder = capsys.readouterr().out
    assert series.run("diff") == 0
    of_all = capsys.readouterr().out

    assert of_folder in of_all
    assert "vllm/kernels/fast/gemm.py" in of_folder
    assert "vllm/ops.py" in of_all
    assert "vllm/ops.py" not in of_folder


def test_a_path_that_the_series_does_not_have_is_refused(
    series: FakeSeries, capsys: pytest.CaptureFixture
):
    assert series.run("diff", "vllm/absent.py") == 1
    assert "vllm/absent.py: is no file or folder of the series" in (
        capsys.readouterr().err
    )
