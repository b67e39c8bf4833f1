# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The lists of sites that stand: ``LISTS``, of which ``allowed_derived.toml`` has the
new tensors, and ``pending.toml`` what will be converted.

An entry names a function and its statements, by kind; a statement that occurs twice is
listed twice. Line numbers do not matter::

    [[allowed]]
    path = "vllm/model_executor/layers/example.py"
    function = "ExampleMethod.process_weights_after_loading"
    reason = "a workspace that no checkpoint has"
    delete = ["del layer.workspace"]

A pending entry has ``row``, its row in the site map, in the place of the reason.
"""

import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tools.census import derived, half_pairs, sites
from tools.census.sites import Site

Key = tuple[str, str, str, str]
KINDS = (*sites.KINDS, *half_pairs.KINDS, *derived.KINDS)
LISTS = ("allowed.toml", "allowed_derived.toml", "pending.toml")
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """Statements of one function that stand for one reason.

    Attributes:
        path: The function's file, relative to the repository's root.
        function: Its qualified name.
        reason: Why they may stand; empty if they are pending.
        row: The row of the site map that will convert them; 0 if they are allowed.
        statements: Kind and text of each.
    """

    path: str
    function: str
    reason: str
    row: int
    statements: tuple[tuple[str, str], ...]

    @property
    def keys(self) -> list[Key]:
        """What identifies each statement."""
        return [(self.path, self.function, *statement) for statement in self.statements]


def key(site: Site) -> Key:
    """What identifies a site: everything but its line."""
    return site.path, site.function, site.kind, site.statement


def read_entries(text: str) -> list[Entry]:
    """Entries of one list.

    Raises:
        ValueError: It is not TOML, or an entry lacks a field or has an unknown one.
    """
    tables = tomllib.loads(text)
    if unknown := tables.keys() - {"allowed", "pending"}:
        raise ValueError(
            f"unknown {sorted(unknown)}; expected [[allowed]], [[pending]]"
        )
    entries = [_entry(table, "reason", str) for table in tables.get("allowed", [])]
    return entries + [_entry(table, "row", int) for table in tables.get("pending", [])]


def _entry(table: dict, ground: str, kind: type) -> Entry:
    fields = {"path": str, "function": str, ground: kind}
    label = f"{table.get('path')}: {table.get('function')}"
    for name, expected in fields.items():
        if not isinstance(table.get(name), expected) or not table[name]:
            raise ValueError(f"{label}: expected {name}, a {expected.__name__}")
    if unknown := table.keys() - {*fields, *KINDS}:
        raise ValueError(f"{label}: unknown {sorted(unknown)}; expected {KINDS}")
    statements = tuple((kind, one) for kind in KINDS for one in table.get(kind, ()))
    if not statements:
        raise ValueError(f"{label}: lists no statement; remove it")
    reason, row = table.get("reason", ""), table.get("row", 0)
    return Entry(table["path"], table["function"], reason, row, statements)


def load_entries() -> list[Entry]:
    """Entries of every list.

    Raises:
        ValueError: One of them is at fault.
    """
    entries = []
    for name in LISTS:
        try:
            entries += read_entries((FOLDER / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"tools/census/{name}: {error}") from error
    return entries


@dataclass(frozen=True)
class Verdict:
    """What became of each site and of each entry.

    Attributes:
        status: For each site, ``series``, ``allowed``, ``pending`` or ``unlisted``.
        rows: For each row of the map, the number of sites that are pending for it.
        stale: Listed statements that match no site.
    """

    status: list[tuple[Site, str]]
    rows: Counter[int]
    stale: list[Key]

    @property
    def is_clean(self) -> bool:
        """Whether every site is accounted for, and every listed one exists."""
        return not self.stale and all(one != "unlisted" for _, one in self.status)


def judge(sites: list[Site], ours: Counter[Key], entries: list[Entry]) -> Verdict:
    """Matches sites with the lists, one to one.

    Args:
        sites: The sites.
        ours: How many of each the overlay wrote.
        entries: The lists.
    """
    own = Counter(ours)
    listed: dict[Key, list[Entry]] = {}
    for entry in entries:
        for one in entry.keys:
            listed.setdefault(one, []).append(entry)
    status, rows = [], Counter[int]()
    for site in sites:
        if listed.get(key(site)):
            entry = listed[key(site)].pop()
            rows[entry.row] += entry.row > 0
            status.append((site, "pending" if entry.row else "allowed"))
        elif own[key(site)] > 0:
            own[key(site)] -= 1
            status.append((site, "series"))
        else:
            status.append((site, "unlisted"))
    stale = [one for one, left in listed.items() for _ in left]
    return Verdict(status, +rows, stale)
