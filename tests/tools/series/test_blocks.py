# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks: what becomes of the statement that a pattern finds."""

import pytest

from tests.tools.series.loader import LOADER, merged_loader
from tests.tools.series.merging import expect, merged


def test_replacing_puts_the_block_in_the_place_of_the_statement_and_its_remark():
    edited = merged_loader(
        """
        with replacing("file = open(path)"):
            # Opens it here.

            path = expand(path)
            file = open(path)
            # To be closed.
        """
    )

    assert edited == LOADER.replace(
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
    edited = merged_loader(f"with after({pattern!r}):\n    file.seek(0)")

    assert edited == LOADER.replace(
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
    edited = merged_loader(
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
        LOADER.replace("        # Opens", "        x = 1\n        # Opens")
        .replace("            # Nothing", "            y = 2\n            # Nothing")
        .replace("            check", "            z = 3\n            check")
    )


@pytest.mark.parametrize(
    "pattern",
    ["if self.strict: $$$", "self.strict", "if self.strict:\n $$$A\nelse:\n $$$B"],
)
def test_after_a_compound_statement_goes_below_all_its_branches(pattern: str):
    edited = merged_loader(f"with after({pattern!r}):\n    seen()")

    assert edited == LOADER.replace(
        '"not checked")\n', '"not checked")\n        seen()\n'
    )


def test_blocks_move_to_the_column_of_the_statement_but_strings_stay():
    edited = merged_loader(
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

    assert edited == LOADER.replace(
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
    edited = merged_loader(
        """
        with replacing("del part"):
            pass
        with replacing("check(file)"):
            # Checked elsewhere; see pass two.
            pass  # nothing
        """
    )

    assert edited == LOADER.replace("            del part\n", "").replace(
        "check(file)", "# Checked elsewhere; see pass two."
    )


def test_a_branch_of_which_everything_is_removed_stays_valid():
    edited = merged_loader(
        """
        with replacing("self.done = True"):
            pass
        with replacing("self.parts.append(part)"):
            pass
        with replacing("continue"):
            pass
        """
    )

    assert edited == LOADER.replace("self.done = True", "pass").replace(
        "self.parts.append(part)\n                continue", "pass"
    )


def test_a_comment_is_replaced_removed_or_built_upon():
    edited = merged_loader(
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

    assert edited == LOADER.replace("Opens the file", "Opens it").replace(
        "            # Nothing to check.\n", ""
    ).replace("to be closed", "closed below")


def test_a_remark_is_removed_without_its_statement():
    edited = merged_loader('with replacing("# to be closed"):\n    pass')

    assert edited == LOADER.replace("  # to be closed", "")


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
