# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The overlay as a whole: what is in it, and the merged tree that it gives."""

import ast
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.series.base import PACKAGE, Pin, Sources, load_pin
from tools.series.catalogue import Entry, load_catalogue, ownership_problems
from tools.series.markers import is_marker_import
from tools.series.merge import merge
from tools.series.problems import Problem, SeriesError
from tools.series.style import tidy


@dataclass(frozen=True)
class Overlay:
    """The series: overlay files, catalogue and pin of one checkout.

    Attributes:
        root: The repository's root.
        pin: The release that the series applies to.
        entries: The catalogue.
        files: Text of every overlay file, by path relative to the root.
        problems: Faults found so far; ``compose`` reports them with its own.
    """

    root: Path
    pin: Pin
    entries: list[Entry]
    files: dict[str, str]
    problems: list[Problem]


def load_overlay(root: Path) -> Overlay:
    """Reads the series of a checkout.

    Raises:
        SeriesError: The pin cannot be read.
    """
    pin = load_pin(root)
    entries, problems = load_catalogue(root)
    files = {}
    for path in sorted((root / PACKAGE).rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        name = path.relative_to(root).as_posix()
        try:
            files[name] = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            files[name] = ""
            problems.append(Problem(name, f"is not text in UTF-8 ({error.reason})"))
    problems += ownership_problems(entries, set(files))
    if f"{PACKAGE}/__init__.py" in files:
        message = "would shadow the installed package in runs from the root; remove it"
        problems.append(Problem(f"{PACKAGE}/__init__.py", message))
    return Overlay(root, pin, entries, files, problems)


def compose(overlay: Overlay, sources: Sources) -> dict[str, str]:
    """Merges every overlay file with the base.

    Returns:
        Text of each file that differs from upstream's or that upstream lacks, by path.

    Raises:
        SeriesError: The catalogue is at fault, or some files cannot be merged; names
            every fault of all of them.
    """
    new = {file for entry in overlay.entries for file in entry.adds}
    listed = new.union(*(entry.edits for entry in overlay.entries))
    problems = list(overlay.problems)
    added, merged = {}, {}
    for path, text in overlay.files.items():
        upstream_has = path in sources.paths
        is_new = path in new or (path not in listed and not upstream_has)
        fault = _misplaced(path, text, is_new, upstream_has)
        if fault:
            problems.append(Problem(path, fault))
        elif is_new:
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
    if upstream_has and is_new:
        return (
            "is a new module at a path that upstream has; move it, or make it a delta "
            "and list it under Edits (upstream may already have the change)"
        )
    if upstream_has:
        return "" if path.endswith(".py") else "only .py files can be deltas"
    if _has_markers(text):
        return (
            "is a delta with markers, but upstream has no file at this path; correct "
            "the path (upstream may have moved the file)"
        )
    if is_new:
        return ""
    return "is listed under Edits, but upstream has no such file; list it under Adds"


def _has_markers(text: str) -> bool:
    try:
        return any(map(is_marker_import, ast.parse(text).body))
    except SyntaxError:
        return False
