# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Definitions that share a name or a class: accessors, overloads, removals."""

from tests.tools.series.merging import UPSTREAM, expect, merged


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
