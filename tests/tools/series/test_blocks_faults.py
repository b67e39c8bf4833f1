# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks that cannot be merged."""

import pytest

from tests.tools.series.loader import LOADER, loader_fault
from tests.tools.series.merging import fault


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            'with replacing("flush()"):\n    pass',
            "Loader.load: 'flush()': matched 0 times, expected exactly once: correct "
            "the pattern, or drop the edit if upstream already has the change",
        ),
        (
            'with replacing("warn($$$)"):\n    pass',
            "Loader.load: 'warn($$$)': matched 2 times, on upstream's lines 11, 20; "
            "expected exactly once: make the pattern longer, or add inside=, outside= "
            "or follows=",
        ),
        (
            'with after("raise", follows="pass"):\n    x()',
            "Loader.load: 'raise': matched 0 times, follows='pass', expected exactly "
            "once: correct the pattern, or drop the edit if upstream already has the "
            "change",
        ),
        (
            'with before("warn($$$)", inside="class $A: $$$"):\n    x()',
            "Loader.load: 'warn($$$)': matched 0 times, inside='class $A: $$$', "
            "expected exactly once: correct the pattern, or drop the edit if upstream "
            "already has the change",
        ),
        (
            'with replacing("else: $$$"):\n    pass',
            "Loader.load: 'else: $$$': is not an ast-grep pattern: Multiple AST nodes "
            "are detected; write one statement or expression",
        ),
        (
            'with replacing(""):\n    pass',
            "Loader.load: is not an ast-grep pattern: No AST root is",
        ),
        (
            'with replacing("path"):\n    pass',
            "Loader.load: 'path': matched 3 times, on upstream's lines 4, 11, 20",
        ),
        (
            'with replacing("self.strict"):\n    pass',
            "Loader.load: 'self.strict': matches an expression inside `if "
            "self.strict:`, but the block is not one expression: match the whole "
            "statement, or give one expression",
        ),
        (
            'with after("continue"):\n    pass',
            "Loader.load: 'continue': the block is empty: there is nothing to insert",
        ),
        (
            'with before("# to be closed"):\n    x()',
            "Loader.load: '# to be closed': matches a comment at the end of a line; "
            "match the statement",
        ),
        (
            'with replacing("# to be closed"):\n    x()',
            "Loader.load: '# to be closed': matches a comment at the end of a line; "
            "expected a block of one comment and `pass`, or match the statement",
        ),
        (
            "with replacing(path):\n    pass",
            "Loader.load: line 5 holds a malformed marker; expected one marker with "
            'one string, as in `with replacing("del layer.weight"):`, and perhaps '
            "inside=, outside= or follows= with another, and the block on lines of its "
            "own",
        ),
        ('with replacing("raise") as x:\n    pass', "Loader.load: line 5 holds a mal"),
        ('with replacing("a", "b"):\n    pass', "Loader.load: line 5 holds a malforme"),
        ('with replacing("raise", inside=1):\n    pass', "Loader.load: line 5 holds a"),
        ('with replacing("raise", at="x"):\n    pass', "Loader.load: line 5 holds a m"),
        ('with replacing("raise"): pass', "Loader.load: line 5 holds a malformed mar"),
        (
            'with replacing("raise"), after("x"):\n    pass',
            "Loader.load: line 5 holds a malformed marker",
        ),
        (
            'with replacing("raise"):\n    with after("x"):\n        y()',
            "Loader.load: line 6 holds the marker 'after' inside another statement; "
            "edit blocks stand directly in the body of a function, removed() in a "
            "module or class",
        ),
        (
            'with replacing("raise"):\n    pass\nreturn 1',
            "Loader.load: line 7 is an ordinary statement among edit blocks; put it "
            "into a block, or write the whole function anew",
        ),
        (
            'if path:\n    with replacing("raise"):\n        pass',
            "Loader.load: line 6 holds the marker 'replacing' inside another statement",
        ),
        ('removed("x")', "Loader.load: line 5 holds the marker 'removed' inside anot"),
        (
            'with replacing("raise"):\n    x()\nwith after("raise"):\n    y()',
            "Loader.load: 'raise': edits a statement that another edit has already "
            "changed ('raise'); write one edit that does both",
        ),
        (
            'with replacing("del part"):\n    x()\n'
            'with after("for part in file: $$$"):\n    y()\n'
            'with replacing("for part in file: $$$"):\n    z()',
            "Loader.load: 'for part in file: $$$': edits a statement that another edit "
            "has already changed ('del part'); write one edit that does both",
        ),
        (
            'with replacing("file = open(path)"):\n    x()\n'
            'with replacing("# to be closed"):\n    pass',
            "Loader.load: '# to be closed': edits a statement that another edit has "
            "already changed",
        ),
    ],
)
def test_a_fault_names_function_and_pattern_and_says_what_to_do(
    block: str, expected: str
):
    assert loader_fault(block).startswith(expected)


@pytest.mark.parametrize(
    "delta",
    [
        'from series import after\nwith after("x"):\n    y()',
        'from series import after\nclass Loader:\n    with after("x"):\n        y()',
    ],
)
def test_a_marker_outside_a_function_is_refused(delta: str):
    assert fault(LOADER, delta).endswith(
        "holds a marker outside a definition; edit blocks belong into the body of a "
        "function"
    )


def test_a_function_on_one_line_is_not_edited_but_written_anew():
    delta = 'from series import after\ndef f():\n    with after("x"):\n        y()'

    assert fault("def f(): x\n", delta) == (
        "f: is on one line upstream; write the whole function anew"
    )
