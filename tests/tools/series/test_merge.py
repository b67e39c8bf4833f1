# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Definitions: added, replaced, merged by members."""

import pytest

from tests.tools.series.merging import UPSTREAM, expect, merged


@pytest.mark.parametrize("delta", ["", "# a comment\n", "pass\n", "class Shape: pass"])
def test_a_delta_of_nothing_leaves_the_text_as_it_was(delta: str):
    expect(UPSTREAM, delta, UPSTREAM)


def test_new_definitions_go_to_the_end_in_the_delta_s_order():
    expect(
        UPSTREAM,
        """
        # What triple does.
        @cached
        def triple(x):
            return 3 * x


        class Square(Shape):
            sides = 4


        async def wait(): ...
        """,
        UPSTREAM
        + """

# What triple does.
@cached
def triple(x):
    return 3 * x


class Square(Shape):
    sides = 4


async def wait(): ...
""",
    )


def test_new_definitions_go_before_the_main_guard_and_its_comments():
    expect(
        """
        def run(): ...


        # Started by hand.
        if __name__ == "__main__":
            run()
        """,
        "def stop(): ...",
        """
        def run(): ...


        def stop(): ...


        # Started by hand.
        if __name__ == "__main__":
            run()
        """,
    )


def test_a_definition_is_added_to_an_empty_file():
    expect("", "def stop(): ...", "def stop(): ...\n")


def test_new_methods_go_to_the_end_of_their_class_with_comments_around_them():
    expect(
        UPSTREAM,
        """
        class Shape:
            # Above the method.
            @property
            def corners(self):
                text = \"\"\"kept
              as it stands\"\"\"
                return self.sides, text
                # Below its last statement.

            def perimeter(self): ...
        """,
        UPSTREAM.replace(
            "a remark\n",
            '''a remark

    # Above the method.
    @property
    def corners(self):
        text = """kept
      as it stands"""
        return self.sides, text
        # Below its last statement.

    def perimeter(self): ...
''',
        ),
    )


@pytest.mark.parametrize("body", [": ...", ":\n    pass", ":\n    ..."])
def test_a_class_body_that_was_empty_gets_the_new_method_alone(body: str):
    expect(
        f"class Error(Exception){body}\n",
        """
        class Error:
            def text(self): ...
        """,
        """
        class Error(Exception):
            def text(self): ...
        """,
    )


def test_a_function_with_an_ordinary_body_replaces_upstream_s():
    expect(
        """
        # upstream's comment
        @old
        def double(x):
            return x + x  # upstream's remark
            # upstream's last words


        def halve(x):
            return x / 2
        """,
        """
        # Comments on an edit, as this def here, are for the delta's reader: a@b.
        @new
        async def double(x, by=2):
            return by * x  # our remark
        """,
        """
        # upstream's comment
        @new
        async def double(x, by=2):
            return by * x  # our remark


        def halve(x):
            return x / 2
        """,
    )


def test_a_method_is_replaced_in_its_class_only():
    expect(
        """
        class A:
            def f(self):
                return 1

        class B:
            def f(self):
                return 2
        """,
        """
        class B:
            def f(self):
                return 3
        """,
        """
        class A:
            def f(self):
                return 1


        class B:
            def f(self):
                return 3
        """,
    )


def test_definitions_under_if_and_try_are_found_and_keep_their_column():
    expect(
        """
        if flag:

            class A:
                def f(self):
                    return 1

        try:
            import fast
        except ImportError:

            def fast():
                return 1
        """,
        """
        class A:
            def f(self):
                return 2

            def g(self): ...

        def fast():
            return 2
        """,
        """
        if flag:

            class A:
                def f(self):
                    return 2

                def g(self): ...


        try:
            import fast
        except ImportError:

            def fast():
                return 2
        """,
    )


def test_text_beyond_ascii_keeps_every_edit_in_its_place():
    expect(
        """
        GREETING = "grüße 😀"


        def f():
            x = "😀"; y = "ü"
        """,
        """
        from series import replacing

        def f():
            with replacing('"ü"'):
                "größer 😀"

        def é(): return "😀"
        """,
        """
        GREETING = "grüße 😀"


        def f():
            x = "😀"
            y = "größer 😀"


        def é():
            return "😀"
        """,
    )


def test_a_file_with_carriage_returns_keeps_them():
    upstream = "def f():\r\n    return 1\r\n"
    delta = "def f():\r\n    return 2\r\n\r\n\r\ndef g(): ...\r\n"

    assert merged(upstream, delta) == (
        "def f():\r\n    return 2\r\n\r\n\r\ndef g(): ...\r\n"
    )


def test_bases_may_be_repeated():
    upstream = "class A(B, metaclass=C):  # why\n    x = 1\n"

    delta = "class A(B, metaclass=C):\n    x = 2\n"

    assert merged(upstream, delta) == upstream.replace("1", "2")
