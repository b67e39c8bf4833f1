# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Definitions: added, replaced, merged by members, removed."""

import pytest

from tests.tools.series.merging import expect, fault, faults, merged

UPSTREAM = """\
# licence

import os


class Shape:
    sides = 0

    def area(self):
        return os.name  # a remark


def double(x):
    return 2 * x


def halve(x):
    return x / 2
"""


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


def test_accessors_of_a_property_are_told_apart():
    upstream = """
        class A:
            @property
            def x(self):
                return 1

            @x.setter
            def x(self, value):
                self.y = 1
        """
    expect(
        upstream,
        """
        from series import replacing

        class A:
            @x.setter
            def x(self, value):
                with replacing("1"):
                    value

            @x.deleter
            def x(self): ...
        """,
        """
        class A:
            @property
            def x(self):
                return 1

            @x.setter
            def x(self, value):
                self.y = value

            @x.deleter
            def x(self): ...
        """,
    )


def test_overloads_are_added_together_with_their_function():
    delta = """
        @overload
        def f(x: int) -> int: ...
        @overload
        def f(x: str) -> str: ...
        def f(x):
            return x
        """
    expect("", delta, merged("", delta))
    assert merged("", delta).count("def f(") == 3


def test_overloads_for_an_upstream_function_are_refused():
    upstream = """
        def f(x):
            return x
        """
    delta = """
        @overload
        def f(x: int) -> int: ...
        """
    assert fault(upstream, delta) == (
        "f: is bound in another way upstream, on line 2 (`def f(x):`); choose another "
        "name"
    )


def test_removed_takes_definitions_with_their_decorators_and_remarks():
    expect(
        UPSTREAM,
        """
        from series import removed

        removed("double")

        class Shape:
            removed("sides")
        """,
        """
        # licence

        import os


        class Shape:
            def area(self):
                return os.name  # a remark


        def halve(x):
            return x / 2
        """,
    )


def test_a_class_of_which_everything_is_removed_stays_valid():
    expect(
        """
        class A:
            x = 1
            \"\"\"What x is.\"\"\"

            @property
            def y(self): ...
        """,
        """
        from series import removed

        class A:
            removed("x")
            removed("y")
        """,
        """
        class A:
            pass
        """,
    )


def test_the_last_definition_of_a_class_can_be_removed_while_another_is_added():
    expect(
        """
        class A:
            def f(self): ...
        """,
        """
        from series import removed

        class A:
            removed("f")
            def g(self): ...
        """,
        """
        class A:
            def g(self): ...
        """,
    )


def test_an_edit_of_a_last_statement_stays_in_its_method_when_others_are_added():
    expect(
        """
        class A:
            def f(self):
                if self:
                    start()
        """,
        """
        from series import after

        def h(): ...

        class A:
            def g(self): ...

            def f(self):
                with after("if self: $$$"):
                    stop()
                with after("start()"):
                    wait()
        """,
        """
        class A:
            def f(self):
                if self:
                    start()
                    wait()
                stop()

            def g(self): ...


        def h(): ...
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


def test_every_fault_of_a_delta_is_reported():
    found = faults(
        UPSTREAM,
        """
        from series import replacing, removed

        removed("tripple")
        print("hello")

        def double(x):
            with replacing("missing()"):
                pass
            with replacing("also_missing()"):
                pass

        class Shape:
            def area(self, x):
                with replacing("os"):
                    sys
        """,
    )

    assert [line.split(":")[0] for line in found] == [
        "tripple",
        "line 5 is `print('hello')`; a delta holds imports, definitions, assignments "
        "to one name, and removed()",
        "double",
        "double",
        "Shape.area",
    ]


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ("def f(:", "line 1 is not Python: invalid syntax"),
        (
            "def double(x): ...\ndef double(x): ...",
            "double: line 2 defines it a second time; put all that changes into one "
            "definition",
        ),
        (
            "class Shape:\n    x = 1\n    x = 2",
            "Shape.x: line 3 defines it a second time; put all that changes into one "
            "definition",
        ),
        ("def Shape(): ...", "Shape: is a class upstream, and a function in the delta"),
        ("class halve: ...", "halve: is a function upstream, and a class in the delta"),
        (
            "def os(): ...",
            "os: is bound in another way upstream, on line 3 (`import os`); choose "
            "another name",
        ),
        (
            "class Shape(Base): ...",
            "Shape: bases (Base) differ from upstream's (); leave them out",
        ),
        (
            "@final\nclass Shape: ...",
            "Shape: decorator @final is not among upstream's (none); leave decorators "
            "out, or write the whole definition anew",
        ),
        (
            'from series import removed\nremoved("half")',
            "half: is not defined upstream, but the delta edits or removes it; did you "
            "mean 'halve'?",
        ),
        (
            'from series import after\ndef half(x):\n    with after("y"):\n        z',
            "half: is not defined upstream, but the delta edits or removes it; did you "
            "mean 'halve'?",
        ),
        (
            "from series import removed\n\n"
            'class Shape:\n    def turn(self):\n        removed("y")',
            "Shape.turn: is not defined upstream, but the delta edits or removes it",
        ),
        (
            "from series import removed\nremoved('double')\ndef double(x): ...",
            "double: edits a statement that another edit has already changed (the edit "
            "of double); write one edit that does both",
        ),
        (
            "class Shape:\n    import sys",
            "Shape: line 2 is `import sys`; a delta holds imports, definitions, "
            "assignments to one name, and removed()",
        ),
        (
            'def double(x): ...\n"""A stray string."""',
            "line 2 is `'A stray string.'`; a delta holds imports, definitions, "
            "assignments to one name, and removed()",
        ),
        (
            "def extra(x):\n    nonlocal x\n",
            "the merged file is not Python: name 'x' is parameter and nonlocal, at "
            "`nonlocal x`",
        ),
    ],
)
def test_a_fault_names_its_definition_and_says_what_to_do(delta: str, expected: str):
    assert fault(UPSTREAM, delta) == expected


def test_a_definition_that_upstream_has_twice_is_refused():
    upstream = """
        if flag:
            def f(): ...
        else:
            def f(): ...
        """
    assert fault(upstream, "def f(): ...") == (
        "f: upstream defines it 2 times, on lines 3, 5; only what stands there once "
        "can be merged by its name"
    )


def test_bases_may_be_repeated():
    upstream = "class A(B, metaclass=C):  # why\n    x = 1\n"

    delta = "class A(B, metaclass=C):\n    x = 2\n"

    assert merged(upstream, delta) == upstream.replace("1", "2")


def test_an_upstream_file_that_the_parser_does_not_know_is_refused():
    upstream = """
        def f():
            if x:
                return a, *((b,) * 2)
            else:
                return a, *((b,) * 3)
        """
    assert fault(upstream, "def g(): ...") == (
        "upstream's line 4 is beyond ast-grep: no delta can change it"
    )
