# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edits of an upstream text, and the one place where they are applied."""

from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.series.upstream import span


class FaultError(Exception):
    """A statement of a delta that cannot be merged.

    Args:
        message: What was found, what was expected, and what to do.
        definition: Qualified name of the definition at fault, or empty.
        pattern: The pattern at fault, or empty.
    """

    def __init__(self, message: str, definition: str = "", pattern: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.definition = definition
        self.pattern = pattern


@dataclass(frozen=True)
class Edit:
    """Replaces ``text[start:end]``; offsets are characters of the upstream text.

    Attributes:
        start: First character that goes.
        end: First character that stays.
        text: What comes in its place.
        claim: Range of the statement that this edit is an edit of. No two edits may
            claim overlapping ranges. Empty for an addition.
        definition: Qualified name of the definition that is edited.
        pattern: The pattern that found the statement, or empty.
    """

    start: int
    end: int
    text: str
    claim: tuple[int, int]
    definition: str
    pattern: str = ""


def addition(position: int, text: str, definition: str) -> Edit:
    """An edit that inserts text and claims no statement."""
    return Edit(position, position, text, (position, position), definition)


def replacement(node: SgNode, text: str, definition: str) -> Edit:
    """An edit that puts text in the place of a node."""
    start, end = span(node)
    return Edit(start, end, text, (start, end), definition)


def removal(text: str, node: SgNode, definition: str, pattern: str = "") -> Edit:
    """An edit that takes a node away, with its lines and the comments on them."""
    start, end = span(node)
    return Edit(
        line_start(text, start), line_end(text, end) + 1, "", (start, end), definition,
        pattern,
    )  # fmt: skip


def line_start(text: str, position: int) -> int:
    """Offset of the first character of the line that holds ``position``."""
    return text.rfind("\n", 0, position) + 1


def line_end(text: str, position: int) -> int:
    """Offset of the newline that ends the line that holds ``position``."""
    newline = text.find("\n", position)
    return len(text) if newline < 0 else newline


def apply_edits(text: str, edits: list[Edit]) -> tuple[str, list[FaultError]]:
    """Applies edits to a text.

    Args:
        text: The upstream text.
        edits: Edits in any order; additions at one position keep their order.

    Returns:
        The new text, and a fault for each edit of a statement that another edit
        already claims (that edit is left out).
    """
    faults = []
    kept: list[Edit] = []
    for edit in edits:
        other = next((old for old in kept if _overlap(old.claim, edit.claim)), None)
        if other is None:
            kept.append(edit)
            continue
        what = (
            repr(other.pattern) if other.pattern else f"the edit of {edit.definition}"
        )
        faults.append(
            FaultError(
                "edits a statement that another edit has already changed "
                f"({what}); write one edit that does both",
                edit.definition,
                edit.pattern,
            )
        )
    for edit in sorted(kept, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text, faults


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]
