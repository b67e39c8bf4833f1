# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""This repository's own series, on the pinned release."""

import ast
import random
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.series.fake_series import tree
from tools.series.__main__ import ROOT
from tools.series.base import Sources, load_pin
from tools.series.check import check
from tools.series.compose import write_tree
from tools.series.diff import unified_diff
from tools.series.export import export
from tools.series.merge import merge
from tools.series.overlay import Overlay, compose, load_overlay
from tools.series.problems import SeriesError
from tools.series.style import tidy

FOREIGN = ("/third_party/", "/vllm_flash_attn/", "/_version.py")
"""Parts of the paths of files that upstream does not format: vendored or generated."""


@pytest.fixture(scope="module")
def sources() -> Sources:
    """The pinned release, if this machine has its wheel already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        try:
            return Sources(load_pin(ROOT))
        except SeriesError as error:
            pytest.skip(f"no wheel of the pinned release: {error}")


@pytest.fixture(scope="module")
def overlay() -> Overlay:
    """This repository's series."""
    return load_overlay(ROOT)


@pytest.fixture(scope="module")
def composed(
    overlay: Overlay, sources: Sources, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder that ``compose`` writes."""
    folder = tmp_path_factory.mktemp("composed")
    write_tree(compose(overlay, sources), sources, folder)
    return folder


@pytest.fixture(scope="module")
def release(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository of the release's Python files."""
    folder = tmp_path_factory.mktemp("release")
    write_tree({}, sources, folder)
    _git(folder, "init", "--quiet")
    _git(folder, "config", "user.name", "A. Uthor")
    _git(folder, "config", "user.email", "a@example.org")
    _git(folder, "config", "commit.gpgsign", "false")
    _git(folder, "add", "--force", ".")
    _git(folder, "commit", "--quiet", "--message", "Release")
    return folder


@pytest.fixture
def checkout(release: Path, tmp_path: Path) -> Path:
    """A work tree of that repository."""
    folder = tmp_path / "checkout"
    _git(release, "worktree", "add", "--quiet", "--detach", str(folder))
    return folder


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _python(folder: Path) -> dict[str, bytes | None]:
    return {path: data for path, data in tree(folder).items() if path.endswith(".py")}


def test_the_series_passes_its_own_check(overlay: Overlay, sources: Sources):
    assert set(check(overlay, sources)) == set(overlay.files)


def test_export_equals_compose_with_one_commit_a_patch(
    overlay: Overlay, sources: Sources, composed: Path, checkout: Path
):
    export(overlay, compose(overlay, sources), sources, checkout)

    assert _python(checkout) == _python(composed)
    titles = _git(checkout, "log", "--reverse", "--format=%s").splitlines()
    assert titles == ["Release", *(entry.title for entry in overlay.entries)]


def test_git_apply_of_the_diff_gives_the_composed_tree(
    overlay: Overlay, sources: Sources, composed: Path, checkout: Path
):
    diff = "".join(unified_diff(compose(overlay, sources), sources))

    subprocess.run(
        ["git", "-C", str(checkout), "apply", "-"], input=diff.encode(), check=True
    )

    assert _python(checkout) == _python(composed)


@pytest.fixture
def sample(sources: Sources) -> dict[str, str]:
    """Some of the release's files; the seed that chose them is printed."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    files = sorted(
        path
        for path in sources.hashes
        if path.endswith(".py") and not any(part in path for part in FOREIGN)
    )
    return {path: sources.read(path) for path in random.Random(seed).sample(files, 30)}


def test_upstream_s_files_are_in_the_style_that_merged_ones_get(
    sample: dict[str, str], tmp_path: Path
):
    assert tidy(sample, tmp_path) == sample


def test_functions_replaced_by_themselves_leave_the_syntax_tree_as_it_was(
    sample: dict[str, str],
):
    for path, text in sample.items():
        delta = "\n".join(_functions(ast.parse(text).body, text.split("\n")))

        merged, problems = merge(path, text, delta)

        assert problems == [], path
        assert ast.dump(ast.parse(merged)) == ast.dump(ast.parse(text)), path


def test_additions_everywhere_leave_the_rest_of_the_syntax_tree_as_it_was(
    sample: dict[str, str],
):
    for path, text in sample.items():
        upstream = ast.parse(text)
        delta = "import series_module\nseries_name = 1\n"
        delta += "".join(
            f"class {node.name}:\n    series_field = 1\n    def series(self): ...\n"
            for node in _unique(upstream.body)
            if isinstance(node, ast.ClassDef)
        )

        merged, problems = merge(path, text, f"{delta}\ndef series(): ...\n")

        assert problems == [], path
        rest = _WithoutAdditions().visit(ast.parse(merged))
        assert ast.dump(rest) == ast.dump(_WithoutAdditions().visit(upstream)), path


class _WithoutAdditions(ast.NodeTransformer):
    """Drops what the delta added, and the ``pass`` that it took the place of."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [child for child in node.body if not self._goes(child)]
        return node

    def _goes(self, node: ast.stmt) -> bool:
        source = ast.unparse(node)
        return source in ("pass", "...") or source.startswith(
            ("import series", "series_", "def series")
        )


def _unique(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Definitions that are the one of their name in a body."""
    names = Counter(getattr(node, "name", None) for node in body)
    for node in body:
        if names[getattr(node, "name", None)] == 1:
            yield node


def _functions(body: list[ast.stmt], lines: list[str]) -> Iterator[str]:
    """Lines of all functions, within headers of their classes."""
    for node in _unique(body):
        if isinstance(node, ast.ClassDef):
            yield f"{' ' * node.col_offset}class {node.name}:"
            yield f"{' ' * node.col_offset}    pass"
            yield from _functions(node.body, lines)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if len(node.body) == 1 and ast.get_docstring(node) is not None:
                continue  # such a function would be an edit of the docstring
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            yield from lines[first - 1 : node.end_lineno]
