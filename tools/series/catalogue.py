# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The catalogue of the series, ``docs/series.md``: one entry a patch."""

from dataclasses import dataclass
from pathlib import Path

from tools.series.problems import Problem

CATALOGUE = "docs/series.md"
PROSE = ("Problem", "Change", "Upstream", "Remove when", "Check")
FILES = ("Adds", "Edits")


@dataclass(frozen=True)
class Entry:
    """One patch.

    Attributes:
        title: The heading; the first line of the commit message.
        fields: Text of each prose field, by name.
        adds: New modules that the patch owns, relative to the repository's root.
        edits: Deltas that the patch owns.
    """

    title: str
    fields: dict[str, str]
    adds: tuple[str, ...]
    edits: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Every overlay file of the patch."""
        return self.adds + self.edits


def load_catalogue(root: Path) -> tuple[list[Entry], list[Problem]]:
    """Reads the catalogue; entries are its second-level headings, in order.

    A field is a paragraph that starts with its name in bold: ``**Problem.** ...``.
    ``Adds`` and ``Edits`` list files in backquotes.

    Returns:
        The entries, and a problem for each field that is missing, unknown or given
        twice, and for each entry that owns no file.
    """
    path = root / CATALOGUE
    if not path.is_file():
        return [], [Problem(CATALOGUE, "is missing; expected the catalogue")]
    _, *sections = f"\n{path.read_text(encoding='utf-8')}".split("\n## ")
    entries, problems = [], []
    for section in sections:
        title, _, body = section.partition("\n")
        found = _fields(body)
        fields = dict(found)
        faults = _faults([name for name, text in found if text], fields)
        problems += [Problem(CATALOGUE, fault, title.strip()) for fault in faults]
        adds, edits = (_paths(fields.pop(name, "")) for name in FILES)
        entries.append(Entry(title.strip(), fields, adds, edits))
    return entries, problems


def ownership_problems(entries: list[Entry], files: set[str]) -> list[Problem]:
    """Faults of the relation between entries and overlay files: each has one owner."""
    problems = []
    owners: dict[str, list[str]] = {}
    for entry in entries:
        for file in entry.files:
            owners.setdefault(file, []).append(entry.title)
            if file not in files:
                message = f"names {file}, which the overlay does not have"
                problems.append(Problem(CATALOGUE, message, entry.title))
    for file in sorted(files):
        titles = owners.get(file, [])
        if len(titles) != 1:
            found = " and ".join(map(repr, titles)) or "no entry"
            message = f"is owned by {found} of {CATALOGUE}; expected exactly one"
            problems.append(Problem(file, message))
    return problems


def _fields(body: str) -> list[tuple[str, str]]:
    fields = []
    for paragraph in body.split("\n\n"):
        text = " ".join(paragraph.split())
        name, mark, rest = text.removeprefix("**").partition(".**")
        if mark and text.startswith("**"):
            fields.append((name, rest.strip()))
    return fields


def _faults(names: list[str], fields: dict[str, str]) -> list[str]:
    expected = ", ".join(PROSE)
    faults = [
        f"lacks the field {name!r}; expected {expected}, and Adds or Edits"
        for name in PROSE
        if name not in names
    ]
    faults += [
        f"has the field {name!r} {names.count(name)} times; expected it once"
        for name in fields
        if names.count(name) > 1
    ]
    faults += [
        f"has the unknown field {name!r}; expected {expected}, Adds, Edits"
        for name in fields
        if name not in PROSE + FILES
    ]
    if not any(_paths(fields.get(name, "")) for name in FILES):
        faults.append("owns no overlay file; list them under Adds or Edits")
    return faults


def _paths(text: str) -> tuple[str, ...]:
    return tuple(text.split("`")[1::2])
