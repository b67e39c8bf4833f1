# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""How the lists account for the sites."""

from collections import Counter

import pytest

from tests.tools.census.walking import FILE
from tools.census.__main__ import report
from tools.census.allowed import Entry, judge, key, read_entries
from tools.census.sites import Site

_SITE = Site(FILE, "drop", 3, "delete", "del layer.weight")


def _entry(reason: str = "", row: int = 0, count: int = 1) -> Entry:
    statements = (("delete", "del layer.weight"),) * count
    return Entry(FILE, "drop", reason, row, statements)


def _judge(sites, entries, ours=()):
    return judge(sites, Counter(map(key, ours)), entries)


def test_a_site_that_no_list_has_is_unlisted():
    verdict = _judge([_SITE], [])
    assert [status for _, status in verdict.status] == ["unlisted"]
    assert not verdict.is_clean


def test_a_listed_site_may_stand():
    verdict = _judge([_SITE], [_entry("a workspace")])
    assert [status for _, status in verdict.status] == ["allowed"]
    assert verdict.is_clean


def test_a_pending_site_is_counted_by_its_row():
    verdict = _judge([_SITE], [_entry(row=13)])
    assert verdict.rows == {13: 1}
    assert verdict.is_clean


def test_a_site_that_the_overlay_wrote_belongs_to_the_series():
    verdict = _judge([_SITE], [], ours=[_SITE])
    assert [status for _, status in verdict.status] == ["series"]


def test_a_listed_statement_that_is_gone_is_stale():
    verdict = _judge([], [_entry("a workspace")])
    assert verdict.stale == [key(_SITE)]
    assert not verdict.is_clean


def test_a_second_occurrence_has_to_be_listed_too():
    verdict = _judge([_SITE, _SITE], [_entry("a workspace")])
    assert [status for _, status in verdict.status] == ["allowed", "unlisted"]


def test_the_report_names_every_fault_in_full():
    lines = report(_judge([_SITE], [_entry("a workspace", count=0)]), 1).splitlines()
    assert lines[-1].startswith(f"{FILE}:3: drop: delete: del layer.weight: ")
    lines = report(_judge([], [_entry("a workspace")]), 1).splitlines()
    assert lines[-1].startswith(f"{FILE}: drop: delete: del layer.weight: ")


def test_a_list_gives_statements_by_kind():
    (entry,) = read_entries(
        f"""
        [[pending]]
        path = "{FILE}"
        function = "drop"
        row = 7
        delete = ["del layer.a"]
        none = ["layer.b = None"]
        """
    )
    assert entry.row == 7
    assert entry.statements == (("delete", "del layer.a"), ("none", "layer.b = None"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[[allowed]]\npath = "a.py"', "expected function"),
        ('[[allowed]]\npath = "a.py"\nfunction = "f"\nset = ["s"]', "expected reason"),
        ('[[allowed]]\npath = "a.py"\nfunction = "f"\nreason = "r"', "no statement"),
        (
            '[[allowed]]\npath = "a.py"\nfunction = "f"\nreason = "r"\nmove = ["s"]',
            "unknown",
        ),
        ("[[permitted]]", "unknown"),
    ],
)
def test_a_faulty_entry_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        read_entries(table)
