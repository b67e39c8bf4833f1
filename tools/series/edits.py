# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edits of an upstream text, and the one place where they are applied."""

from collections.abc import Iterator
from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.series.upstream import column, header_end, own_statements, span


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
        claim: Range of the statement or expression that this edit is an edit of. No
            two edits may claim overlapping ranges. Empty for an addition.
        definition: Qualified name of the definition that is edited.
        pattern: The pattern that found the statement, or empty.
        depth: Column of the text; one less if it goes with what follows. Of the
            additions at one position the deeper go first, since the end of a line can
            end several blocks.
    """

    start: int
    end: int
    text: str
    claim: tuple[int, int]
    definition: str
    pattern: str = ""
    depth: int = 0


def addition(position: int, text: str, definition: str, depth: int = 0) -> Edit:
    """An edit that inserts text and claims no statement."""
    claim = position, position
    return Edit(position, position, text, claim, definition, depth=depth)


def added_lines(place: int, lines: str, definition: str, depth: int = 0) -> Edit:
    """An addition of whole lines.

    Args:
        place: Offset of the end of the line that they follow; 0 for the first lines.
        lines: The lines, indented but for the first.
        definition: Qualified name of the definition that is edited.
        depth: Column in which they start.
    """
    lines = " " * depth + lines
    return addition(place, f"\n{lines}" if place else f"{lines}\n", definition, depth)


def replacement(node: SgNode, text: str, definition: str) -> Edit:
    """An edit that puts text in the place of a node."""
    start, end = span(node)
    return Edit(start, end, text, (start, end), definition)


def removal(text: str, node: SgNode, definition: str, pattern: str = "") -> Edit:
    """An edit that takes a node away, with its lines and the comments on them."""
    start, end = span(node)
    end = line_end(text, end)
    above = max(0, line_start(text, start) - 1)
    return Edit(above, end, "", (start, end), definition, pattern)


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
        edits: Edits in any order. Additions at one position keep their order, but for
            their depth, and go before a replacement that starts there.

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
        else:
            faults.append(_conflict(edit, other))
    kept.sort(key=lambda edit: (edit.start, edit.end > edit.start, -edit.depth))
    pieces, position = [], 0
    for edit in kept:
        assert position <= edit.start, edit
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*pieces, text[position:]]), faults


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def _conflict(edit: Edit, other: Edit) -> FaultError:
    what = repr(other.pattern) if other.pattern else f"the edit of {other.definition}"
    return FaultError(
        f"edits a statement that another edit has already changed ({what}); write one "
        "edit that does both",
        edit.definition,
        edit.pattern,
    )


def fill_emptied(root: SgNode, text: str, edits: list[Edit]) -> Iterator[Edit]:
    """Yields a ``pass`` for each block of which edits leave no statement."""
    gone = [edit.claim for edit in edits if not edit.text and edit.start < edit.end]
    for block in root.find_all(kind="block") if gone else []:
        places = [span(statement) for statement in own_statements(block)]
        start, end = header_end(block), line_end(text, span(block)[1])
        depth = column(block)
        if (
            all(any(_covers(claim, place) for claim in gone) for place in places)
            and not any(_covers(claim, (start, end)) for claim in gone)
            and not any(
                start <= edit.start == edit.end <= end and edit.depth >= depth - 1
                for edit in edits
            )
        ):
            yield added_lines(end, "pass", edits[0].definition, depth)


def _covers(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
