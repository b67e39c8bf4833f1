# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The overlay as a whole: what is in it, and the merged tree that it gives."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.series import MARKERS
from tools.series.base import Pin, Sources, load_pin
from tools.series.catalogue import Entry, load_catalogue, ownership_problems
from tools.series.merge import merge
from tools.series.problems import Problem, SeriesError
from tools.series.style import tidy

PACKAGE = "vllm"


@dataclass(frozen=True)
class Overlay:
    """The series: overlay files, catalogue and pin of one checkout.

    Attributes:
        root: The repository's root.
        pin: The release that the series applies to.
        entries: The catalogue.
        files: Text of every overlay file, by path relative to the root.
    """

    root: Path
    pin: Pin
    entries: list[Entry]
    files: dict[str, str]


def load_overlay(root: Path) -> Overlay:
    """Reads the series of a checkout.

    Raises:
        SeriesError: The pin, the catalogue or the ownership of files is at fault.
    """
    pin, entries = load_pin(root), load_catalogue(root)
    files = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted((root / PACKAGE).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    problems = ownership_problems(entries, set(files))
    if f"{PACKAGE}/__init__.py" in files:
        message = "would shadow the installed package in runs from the root; remove it"
        problems.append(Problem(f"{PACKAGE}/__init__.py", message))
    if problems:
        raise SeriesError(*problems)
    return Overlay(root, pin, entries, files)


def compose(overlay: Overlay, sources: Sources) -> dict[str, str]:
    """Merges every overlay file with the base.

    Returns:
        Text of each file that differs from upstream's or that upstream lacks, by path.

    Raises:
        SeriesError: Some files cannot be merged; names every fault of all of them.
    """
    new = {file for entry in overlay.entries for file in entry.adds}
    problems: list[Problem] = []
    added, merged = {}, {}
    for path, text in overlay.files.items():
        fault = _misplaced(path, text, path in new, path in sources.paths)
        if fault:
            problems.append(Problem(path, fault))
        elif path in new:
            added[path] = text
        else:
            merged[path], faults = merge(path, sources.read(path), text)
            problems += faults
    if problems:
        raise SeriesError(*problems)
    with tempfile.TemporaryDirectory() as folder:
        return added | tidy(merged, Path(folder))


def _misplaced(path: str, text: str, is_new: bool, upstream_has: bool) -> str:
    """Why a file cannot be what the catalogue says it is, or an empty string."""
    if is_new and upstream_has:
        return (
            "is a new module at a path that upstream has; move it, or make it a delta "
            "and list it under Edits (upstream may already have the change)"
        )
    if is_new or upstream_has:
        return "" if is_new or path.endswith(".py") else "only .py files can be deltas"
    if any(f"{marker}(" in text for marker in (*MARKERS, "removed")):
        return (
            "is a delta with markers, but upstream has no file at this path; correct "
            "the path (upstream may have moved the file)"
        )
    return "is listed under Edits, but upstream has no such file; list it under Adds"
