# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The catalogue: its fields, and who owns which file."""

from pathlib import Path

import pytest

from tests.tools.series.fake_series import ENTRY, FakeSeries
from tools.series.catalogue import Entry, load_catalogue, ownership_problems
from tools.series.overlay import load_overlay

FIELDS = "expected Problem, Change, Upstream, Remove when, Check, and Adds or Edits"
ONE = ENTRY.format(title="One", field="Edits", files="`vllm/a.py`,\n`vllm/b.py`")


def _write(root: Path, text: str) -> Path:
    (root / "docs").mkdir()
    (root / "docs/series.md").write_text(text)
    return root


def _problems(root: Path, text: str) -> list[str]:
    return [str(problem) for problem in load_catalogue(_write(root, text))[1]]


def test_entries_are_read_in_order_with_their_fields_and_files(tmp_path: Path):
    two = ENTRY.format(title="Two", field="Adds", files="`vllm/c.py`")

    entries, problems = load_catalogue(
        _write(tmp_path, f"# Series\n\nText.\n{ONE}{two}")
    )

    fields = {
        "Problem": "It is slow.",
        "Change": "It is fast.",
        "Upstream": "Not proposed yet.",
        "Remove when": "Upstream is fast.",
        "Check": "Time it.",
    }
    assert entries == [
        Entry("One", fields, (), ("vllm/a.py", "vllm/b.py")),
        Entry("Two", fields, ("vllm/c.py",), ()),
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("**Check.** Time it.", "", [f"One: lacks the field 'Check'; {FIELDS}"]),
        (
            "**Check.** Time it.",
            "**Check.**",
            [f"One: lacks the field 'Check'; {FIELDS}"],
        ),
        (
            "**Change.**",
            "**Fix.**",
            [
                f"One: lacks the field 'Change'; {FIELDS}",
                "One: has the unknown field 'Fix'; expected Problem, Change, Upstream, "
                "Remove when, Check, Adds, Edits",
            ],
        ),
        (
            "**Edits.**",
            "**Edits.** none\n\n**Check.** It.\n\nEdits:",
            [
                "One: has the field 'Check' 2 times; expected it once",
                "One: owns no overlay file; list them under Adds or Edits",
            ],
        ),
    ],
)
def test_a_wrong_entry_is_reported_by_its_title(
    tmp_path: Path, old: str, new: str, expected: list[str]
):
    assert _problems(tmp_path, ONE.replace(old, new)) == [
        f"docs/series.md: {line}" for line in expected
    ]


def test_every_file_has_exactly_one_owner(tmp_path: Path):
    one = ENTRY.format(title="One", field="Edits", files="`vllm/a.py`, `vllm/b.py`")
    two = ENTRY.format(title="Two", field="Adds", files="`vllm/b.py`, `vllm/gone.py`")
    entries, _ = load_catalogue(_write(tmp_path, one + two))

    problems = ownership_problems(entries, {"vllm/a.py", "vllm/b.py", "vllm/c.py"})

    assert [str(problem) for problem in problems] == [
        "docs/series.md: Two: names vllm/gone.py, which the overlay does not have",
        "vllm/b.py: is owned by 'One' and 'Two' of docs/series.md; expected exactly "
        "one",
        "vllm/c.py: is owned by no entry of docs/series.md; expected exactly one",
    ]


def test_a_missing_catalogue_is_reported(series: FakeSeries):
    (series.root / "docs/series.md").unlink()

    problems = list(map(str, load_overlay(series.root).problems))

    assert problems[0] == "docs/series.md: is missing; expected the catalogue"
    assert len(problems) == 5
