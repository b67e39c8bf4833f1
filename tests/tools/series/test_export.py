# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``export``: one commit a patch, on a checkout of the release."""

import subprocess
from pathlib import Path

import pytest

from tests.tools.series.fake_series import COMPOSED, UPSTREAM, FakeSeries, tree


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository of upstream's files, and an author for commits."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A. Uthor")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    folder = tmp_path / "checkout"
    for path, text in UPSTREAM.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / ".gitignore").write_text("*.json\n_version.py\n")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", "Release")
    return folder


def _files(checkout: Path) -> dict[str, bytes | None]:
    return {p: data for p, data in tree(checkout).items() if p.startswith("vllm/")}


def test_export_makes_one_commit_a_patch_and_equals_compose(
    series: FakeSeries, checkout: Path, capsys: pytest.CaptureFixture
):
    assert series.run("export", str(checkout)) == 0

    titles = [
        "Scale by three",
        "Add a fast kernel",
        "Add its tiles",
        "Let layers run",
    ]
    assert capsys.readouterr().out == "".join(f"committed: {t}\n" for t in titles)
    commits = _git(checkout, "log", "--reverse", "--format=%s").splitlines()
    assert commits == ["Release", *titles]
    assert _git(checkout, "status", "--porcelain") == ""
    expected = {path: text.encode() for path, text in {**UPSTREAM, **COMPOSED}.items()}
    assert _files(checkout) == expected


def test_every_commit_holds_the_files_of_its_patch(series: FakeSeries, checkout: Path):
    series.run("export", str(checkout))

    files = [
        _git(checkout, "show", "--format=", "--name-only", f"HEAD~{age}").split()
        for age in range(3, -1, -1)
    ]
    assert files == [
        ["vllm/ops.py"],
        ["vllm/kernels/fast/gemm.py"],
        ["vllm/kernels/tiles.json"],
        ["vllm/layers/linear.py"],
    ]


def test_the_message_is_the_catalogue_s(series: FakeSeries, checkout: Path):
    series.run("export", str(checkout))

    assert _git(checkout, "log", "-1", "--format=%B").strip() == (
        "Let layers run\n\nIt is slow.\n\nIt is fast.\n\n"
        "Signed-off-by: A. Uthor <a@example.org>"
    )


def test_exported_patches_apply_to_another_checkout(
    series: FakeSeries, checkout: Path, tmp_path: Path
):
    clone = tmp_path / "clone"
    _git(checkout, "clone", "--quiet", str(checkout), str(clone))
    series.run("export", str(checkout))
    patches = _git(checkout, "format-patch", "--quiet", "--stdout", "HEAD~4")

    subprocess.run(
        ["git", "-C", str(clone), "am", "--quiet"], input=patches.encode(), check=True
    )

    diff = _git(checkout, "diff", "HEAD~4", "HEAD")
    assert _git(clone, "diff", "HEAD~4", "HEAD") == diff


def _dirty(checkout: Path) -> str:
    (checkout / "vllm/ops.py").write_text("mine\n")
    return "{checkout}: has uncommitted changes; commit or stash them\n"


def _untracked(checkout: Path) -> str:
    (checkout / "mine.txt").write_text("mine\n")
    return "{checkout}: has uncommitted changes; commit or stash them\n"


def _another_release(checkout: Path) -> str:
    (checkout / "vllm/ops.py").write_text("mine\n")
    _git(checkout, "commit", "--quiet", "--all", "--message", "Mine")
    return (
        "vllm/ops.py: in {checkout} is not the pinned release's; check out that tag\n"
    )


def _ignored_file_in_the_way(checkout: Path) -> str:
    (checkout / "vllm/kernels").mkdir()
    (checkout / "vllm/kernels/tiles.json").write_text("mine")
    return (
        "vllm/kernels/tiles.json: in {checkout} is not the pinned release's; check out "
        "that tag\n"
    )


def _no_checkout(checkout: Path) -> str:
    (checkout / ".git").rename(checkout / "git")
    return "{checkout}: is not a git checkout\n"


def _refusing_hook(checkout: Path) -> str:
    hook = checkout / ".git/hooks/commit-msg"
    hook.write_text(
        "#!/bin/sh\n! grep -q 'its tiles' $1 || { echo No. >&2; exit 1; }\n"
    )
    hook.chmod(0o755)
    return "{checkout}: refused a commit, and none was kept: No.\n"


@pytest.mark.parametrize(
    "spoil",
    [
        _dirty,
        _untracked,
        _another_release,
        _ignored_file_in_the_way,
        _no_checkout,
        _refusing_hook,
    ],
)
def test_a_checkout_that_cannot_be_used_is_left_as_it_was(
    series: FakeSeries, checkout: Path, capsys: pytest.CaptureFixture, spoil
):
    expected = spoil(checkout).format(checkout=checkout)
    before = _files(checkout)

    assert series.run("export", str(checkout)) == 1

    assert capsys.readouterr().err == expected
    assert _files(checkout) == before
    if (checkout / ".git").exists():
        assert "tiles" not in _git(checkout, "log", "--format=%s")
        assert "Scale" not in _git(checkout, "log", "--format=%s")


def test_a_folder_below_the_top_of_a_checkout_is_refused(
    series: FakeSeries, checkout: Path, capsys: pytest.CaptureFixture
):
    assert series.run("export", str(checkout / "vllm")) == 1
    assert capsys.readouterr().err == (
        f"{checkout / 'vllm'}: is not the top of its checkout, {checkout}\n"
    )


def test_an_absent_folder_is_refused(
    series: FakeSeries, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert series.run("export", str(tmp_path / "absent")) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'absent'}: is not a git checkout\n"


def test_a_repository_named_by_a_hook_s_surroundings_is_left_alone(
    series: FakeSeries,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    other = tmp_path / "other"
    subprocess.run(["git", "init", "--quiet", str(other)], check=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))

    assert series.run("export", str(checkout)) == 0

    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert len(_git(checkout, "log", "--format=%s").splitlines()) == 5
    assert not (other / ".git/index").exists()
