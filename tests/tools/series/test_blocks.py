# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks: which statement a pattern finds, and what becomes of it."""

import textwrap

import pytest

from tests.tools.series.merging import expect, fault, faults, merged

UPSTREAM = """\
class Loader:
    def load(self, path):
        # Opens the file.
        file = open(path)  # to be closed

        if self.strict:
            check(file)
            return file
        else:
            # Nothing to check.
            warn(path, "not checked")
        for part in file:
            if part:
                self.parts.append(part)
                continue
            del part
        try:
            file.close()
        except OSError as error:
            warn(path, "not closed")
            raise
        finally:
            self.done = True
        return None
"""


def _delta(*blocks: str) -> str:
    body = textwrap.indent("\n".join(map(textwrap.dedent, blocks)), " " * 8)
    return (
        "from series import after, before, removed, replacing\n\n"
        f"class Loader:\n    def load(self, path):\n{body}\n"
    )


def _edited(*blocks: str) -> str:
    used = [name for name in ("after", "before", "replacing") if name in str(blocks)]
    delta = _delta(*blocks).replace(
        "after, before, removed, replacing", ", ".join(used)
    )
    return merged(UPSTREAM, delta)


def _fault(*blocks: str) -> str:
    found = faults(UPSTREAM, _delta(*blocks))
    (line,) = [line for line in found if not line.startswith("imports the marker")]
    return line


def test_replacing_puts_the_block_in_the_place_of_the_statement_and_its_remark():
    edited = _edited(
        """
        with replacing("file = open(path)"):
            # Opens it here.

            path = expand(path)
            file = open(path)
            # To be closed.
        """
    )

    assert edited == UPSTREAM.replace(
        "        file = open(path)  # to be closed\n",
        "        # Opens it here.\n\n        path = expand(path)\n"
        "        file = open(path)\n        # To be closed.\n",
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "file = open($PATH)",
        "file = $$$",
        "open(path)",
        "file = open(path)",
    ],
)
def test_a_pattern_may_have_holes_or_match_inside_the_statement(pattern: str):
    edited = _edited(f"with after({pattern!r}):\n    file.seek(0)")

    assert edited == UPSTREAM.replace(
        "# to be closed\n", "# to be closed\n        file.seek(0)\n"
    )


@pytest.mark.parametrize(
    "keyword", ["return", "pass", "break", "continue", "raise", "yield"]
)
def test_a_statement_of_one_word_is_its_own_pattern(keyword: str):
    upstream = f"def f():\n    for x in {keyword}_all(x):\n        {keyword}\n"
    delta = (
        "from series import replacing\n\n"
        f"def f():\n    with replacing({keyword!r}):\n        stop()\n"
    )

    assert merged(upstream, delta) == upstream.replace(f" {keyword}\n", " stop()\n")


def test_before_goes_above_the_comments_of_the_statement():
    edited = _edited(
        """
        with before("file = open(path)"):
            x = 1
        with before("warn(path, 'not checked')"):
            y = 2
        with before("check(file)"):
            z = 3
        """.replace("'not checked'", '\\"not checked\\"')
    )

    assert edited == (
        UPSTREAM.replace("        # Opens", "        x = 1\n        # Opens")
        .replace("            # Nothing", "            y = 2\n            # Nothing")
        .replace("            check", "            z = 3\n            check")
    )


@pytest.mark.parametrize(
    "pattern",
    ["if self.strict: $$$", "self.strict", "if self.strict:\n $$$A\nelse:\n $$$B"],
)
def test_after_a_compound_statement_goes_below_all_its_branches(pattern: str):
    edited = _edited(f"with after({pattern!r}):\n    seen()")

    assert edited == UPSTREAM.replace(
        '"not checked")\n', '"not checked")\n        seen()\n'
    )


def test_blocks_move_to_the_column_of_the_statement_but_strings_stay():
    edited = _edited(
        '''
        with replacing("self.parts.append(part)"):
            if part:
                text = f"""
          {part} as it
        stands"""
                call(
                    text,  # a remark
                )
            @decorated
            def inner():
                """Doc.

                More.
                """
        '''
    )

    assert edited == UPSTREAM.replace(
        "                self.parts.append(part)\n",
        '                if part:\n                    text = f"""\n'
        "          {part} as it\n        stands"
        '"""\n                    call(\n'
        "                        text,  # a remark\n                    )\n\n"
        "                @decorated\n                def inner():\n"
        '                    """Doc.\n\n                    More.\n'
        '                    """\n\n',
    )


def test_a_block_of_pass_removes_the_statement_and_keeps_its_own_comments():
    edited = _edited(
        """
        with replacing("del part"):
            pass
        with replacing("check(file)"):
            # Checked elsewhere; see pass two.
            pass  # nothing
        """
    )

    assert edited == UPSTREAM.replace("            del part\n", "").replace(
        "check(file)", "# Checked elsewhere; see pass two."
    )


def test_a_branch_of_which_everything_is_removed_stays_valid():
    edited = _edited(
        """
        with replacing("self.done = True"):
            pass
        with replacing("self.parts.append(part)"):
            pass
        with replacing("continue"):
            pass
        """
    )

    assert edited == UPSTREAM.replace("self.done = True", "pass").replace(
        "self.parts.append(part)\n                continue", "pass"
    )


def test_a_comment_is_replaced_removed_or_built_upon():
    edited = _edited(
        """
        with replacing("# Opens the file."):
            # Opens it.
            pass
        with replacing("# Nothing to check."):
            pass
        with replacing("# to be closed"):
            # closed below
            pass
        """
    )

    assert edited == UPSTREAM.replace("Opens the file", "Opens it").replace(
        "            # Nothing to check.\n", ""
    ).replace("to be closed", "closed below")


def test_a_remark_is_removed_without_its_statement():
    edited = _edited('with replacing("# to be closed"):\n    pass')

    assert edited == UPSTREAM.replace("  # to be closed", "")


@pytest.mark.parametrize(
    ("pattern", "expression", "old", "new"),
    [
        ("self.strict", "self.strict and path", "self.strict", "self.strict and path"),
        ("True", "(\n    a\n    or b\n)", "= True", "= a or b"),
        ("open(path)", "a, b", "open(path)", "a, b"),
        ("path", "a, b", None, None),
        ("file", "yield", None, None),
    ],
)
def test_an_expression_takes_the_place_of_an_expression(
    pattern: str, expression: str, old: str | None, new: str
):
    block = f"with replacing({pattern!r}):\n{textwrap.indent(expression, ' ' * 4)}\n"
    if old is None:
        assert "times" in _fault(block)
    else:
        assert _edited(block) == UPSTREAM.replace(old, new, 1)


@pytest.mark.parametrize(
    ("statement", "pattern", "new", "expected"),
    [
        ("x = a * b", "b", "c + d", "x = a * (c + d)"),
        ("x = a + b", "b", "c * d", "x = a + c * d"),
        ("x = f(a, b)", "b", "c, d", "x = f(a, (c, d))"),
        ("x = a.b", "a", "await_(c)", "x = await_(c).b"),
        ("x = a.b", "a", "c or d", "x = (c or d).b"),
        ("x = -a", "a", "c if d else e", "x = -(c if d else e)"),
        ("x = f(a)", "a", "i for i in c", None),
        ("x = f(a)", "a", "lambda: c", "x = f(lambda: c)"),
        ("x = a < b", "b", "c < d", "x = a < (c < d)"),
        ('x = f"{a}"', "a", "c + d", 'x = f"{c + d}"'),
        ("if a:\n        b()", "a", "(yield)", "if (yield):\n        b()"),
    ],
)
def test_parentheses_stand_where_precedence_needs_them(
    statement: str, pattern: str, new: str, expected: str | None
):
    upstream = f"def f():\n    {statement}\n"
    delta = (
        "from series import replacing\n\n"
        f"def f():\n    with replacing({pattern!r}):\n        {new}\n"
    )
    if expected is None:
        assert "is not Python" in fault(upstream, delta)
    else:
        assert merged(upstream, delta) == f"def f():\n    {expected}\n"


def test_two_expressions_of_one_header_can_be_replaced():
    expect(
        """
        def f():
            if a and b:
                c()
        """,
        """
        from series import replacing

        def f():
            with replacing("a"):
                x
            with replacing("b"):
                y
            with replacing("c()"):
                z()
        """,
        """
        def f():
            if x and y:
                z()
        """,
    )


def test_outside_means_the_statement_that_no_such_block_holds():
    expect(
        """
        def f():
            if x:
                close()
            close()
        """,
        """
        from series import replacing

        def f():
            with replacing("close()", outside="if x: $$$"):
                release()
        """,
        """
        def f():
            if x:
                close()
            release()
        """,
    )


REPEATED = """\
def f(items):
    start()
    use(items)
    if items:
        use(items)
        # and then
        return
    elif more:
        use(items)
        stop()
        return
    for item in items:
        with lock:
            use(items)
"""


@pytest.mark.parametrize(
    ("marker", "line"),
    [
        ('"use(items)", follows="start()"', 3),
        ('"use(items)", inside="for $A in $B: $$$"', 14),
        ('"use(items)", inside="with lock: $$$"', 14),
        ('"return", follows="use(items)"', 7),
        ('"return", inside="if items: $$$", follows="stop()"', 11),
        ('"use($A)", inside="elif more: $$$"', None),
    ],
)
def test_inside_and_follows_tell_statements_that_recur_apart(
    marker: str, line: int | None
):
    delta = (
        "from series import replacing\n\n"
        f"def f(items):\n    with replacing({marker}):\n        found()\n"
    )
    if line is None:
        assert "is not a pattern" in fault(REPEATED, delta)
        return
    lines = REPEATED.splitlines()
    lines[line - 1] = lines[line - 1].replace("use(items)", "found()")
    lines[line - 1] = lines[line - 1].replace("return", "found()")

    assert merged(REPEATED, delta).splitlines() == lines


def test_statements_of_a_nested_function_are_found():
    expect(
        """
        def f():
            @wraps
            def g(x):
                return x

            return g
        """,
        """
        from series import before, replacing

        def f():
            with replacing("return x"):
                return x + 1
            with before("def g($$$): $$$"):
                count = 0
        """,
        """
        def f():
            count = 0

            @wraps
            def g(x):
                return x + 1

            return g
        """,
    )


def test_a_nested_function_with_decorators_is_replaced_as_a_whole():
    expect(
        """
        async def f():
            @wraps
            async def g(x):
                await x
        """,
        """
        from series import replacing

        async def f():
            with replacing("async def g(x): $$$"):
                g = None
        """,
        """
        async def f():
            g = None
        """,
    )


def test_the_header_and_decorators_are_not_searched():
    expect(
        """
        @register(size)
        def f(x=size):
            return size
        """,
        """
        from series import replacing

        def f(x=size):
            with replacing("size"):
                x
        """,
        """
        @register(size)
        def f(x=size):
            return x
        """,
    )


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
            "Loader.load: 'else: $$$': is not a pattern: Multiple AST nodes are "
            "detected; write one statement or expression",
        ),
        (
            'with replacing(""):\n    pass',
            "Loader.load: is not a pattern: No AST root is",
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
    assert _fault(block).startswith(expected)


@pytest.mark.parametrize(
    "delta",
    [
        'from series import after\nwith after("x"):\n    y()',
        'from series import after\nclass Loader:\n    with after("x"):\n        y()',
    ],
)
def test_a_marker_outside_a_function_is_refused(delta: str):
    assert fault(UPSTREAM, delta).endswith(
        "holds a marker outside a definition; edit blocks belong into the body of a "
        "function"
    )


def test_a_function_on_one_line_is_not_edited_but_written_anew():
    delta = 'from series import after\ndef f():\n    with after("x"):\n        y()'

    assert fault("def f(): x\n", delta) == (
        "f: is on one line upstream; write the whole function anew"
    )


def test_what_goes_after_a_statement_goes_before_what_goes_before_the_next():
    expect(
        """
        class A:
            def f(self):
                if a:
                    # first
                    one()
                # second
                two()
        """,
        """
        from series import after, before, replacing

        class A:
            def g(self): ...

            def f(self):
                with before("two()"):
                    before_two()
                with after("if a: $$$"):
                    after_if()
                with after("one()"):
                    after_one()
                with replacing("# second"):
                    pass
        """,
        """
        class A:
            def f(self):
                if a:
                    # first
                    one()
                    after_one()
                after_if()
                before_two()
                two()

            def g(self): ...
        """,
    )


def test_a_method_of_which_everything_is_removed_stays_valid_beside_a_new_one():
    expect(
        """
        class A:
            def f(self):
                one()
        """,
        """
        from series import replacing

        class A:
            def f(self):
                with replacing("one()"):
                    pass

            def g(self): ...
        """,
        """
        class A:
            def f(self):
                pass

            def g(self): ...
        """,
    )


def test_a_branch_may_hold_only_what_a_comment_in_it_is_followed_by():
    expect(
        """
        def f():
            if a:
                # first
                one()
        """,
        """
        from series import after, replacing

        def f():
            with after("# first"):
                two()
            with replacing("one()"):
                pass
        """,
        """
        def f():
            if a:
                # first
                two()
        """,
    )
