# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edits of one text, applied together."""

from tools.series.edits import Edit, addition, apply_edits

TEXT = "a\nb\nc\n"


def _edit(start: int, end: int, text: str, pattern: str = "") -> Edit:
    return Edit(start, end, text, (start, end), "f", pattern)


def test_edits_are_applied_wherever_they_stand_in_the_list():
    edits = [_edit(4, 5, "C"), addition(3, "+", "f"), _edit(0, 1, "AAA")]

    assert apply_edits(TEXT, edits) == ("AAA\nb+\nC\n", [])


def test_additions_at_one_place_keep_their_order_and_the_deeper_go_first():
    edits = [
        addition(3, "1", "f"),
        addition(3, "2", "f", depth=4),
        addition(3, "3", "f"),
        addition(3, "4", "f", depth=4),
    ]

    assert apply_edits(TEXT, edits)[0] == "a\nb2413\nc\n"


def test_an_addition_goes_before_a_replacement_that_starts_there():
    edits = [_edit(2, 3, "B"), addition(2, "+", "f")]

    assert apply_edits(TEXT, edits)[0] == "a\n+B\nc\n"


def test_the_second_edit_of_a_statement_is_left_out_and_reported():
    edits = [_edit(2, 3, "B", "b"), _edit(2, 3, "X", "x"), _edit(2, 5, "Y", "y")]

    text, faults = apply_edits(TEXT, edits)

    assert text == "a\nB\nc\n"
    assert [(fault.definition, fault.pattern) for fault in faults] == [
        ("f", "x"),
        ("f", "y"),
    ]
    assert str(faults[0]) == (
        "edits a statement that another edit has already changed ('b'); write one "
        "edit that does both"
    )
