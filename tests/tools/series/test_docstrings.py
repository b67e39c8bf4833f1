# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Docstrings: paragraphs that are added to upstream's."""

import pytest

from tests.tools.series.merging import expect, fault, merged


def test_paragraphs_are_appended_in_the_column_of_upstream_s():
    expect(
        """
        \"\"\"The module.\"\"\"


        class A:
            \"\"\"The class.

            More.
            \"\"\"

            def f(self):
                # not a docstring yet
                \"\"\"The method.\"\"\"
                return 1
        """,
        """
        \"\"\"Ours.\"\"\"

        class A:
            \"\"\"Ours.

            Attributes:
                x: As in ``\\\\n``.
            \"\"\"

            def f(self):
                \"\"\"
                Returns:
                    One.
                \"\"\"
        """,
        """
        \"\"\"The module.

        Ours.
        \"\"\"


        class A:
            \"\"\"The class.

            More.

            Ours.

            Attributes:
                x: As in ``\\\\n``.
            \"\"\"

            def f(self):
                # not a docstring yet
                \"\"\"The method.

                Returns:
                    One.
                \"\"\"
                return 1
        """,
    )


def test_a_docstring_is_added_where_upstream_has_none():
    expect(
        """
        # licence

        # on the import
        import os


        class A:  # remark
            # on the field
            x = os.name

            def f(self):
                # on the statement
                return self.x


        class B: ...
        """,
        """
        from series import before

        \"\"\"Is a stray string, not the docstring.\"\"\"
        """.replace('"""Is a stray string, not the docstring."""', "")
        + """
        class A:
            \"\"\"The class.\"\"\"

            x = 2

            def f(self):
                \"\"\"The method.

                More.
                \"\"\"
                with before("return self.x"):
                    start()

        class B:
            \"\"\"The other class.\"\"\"
        """,
        """
        # licence

        # on the import


        class A:  # remark
            \"\"\"The class.\"\"\"

            # on the field
            x = 2

            def f(self):
                \"\"\"The method.

                More.
                \"\"\"
                start()
                # on the statement
                return self.x


        class B:
            \"\"\"The other class.\"\"\"
        """,
    )


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("", '"""Ours."""\n'),
        ("# a\n# b\n", '# a\n# b\n"""Ours."""\n'),
        ("x = 1\n", '"""Ours."""\n\nx = 1\n'),
        ("# a\n\nimport os\n\nos\n", '# a\n"""Ours."""\n\nimport os\n\nos\n'),
    ],
)
def test_a_module_gets_its_docstring_below_the_licence(upstream: str, expected: str):
    assert merged(upstream, '"""Ours."""\n') == expected


def test_a_function_with_only_a_docstring_leaves_the_body_to_upstream():
    upstream = "def f(x):\n    return x\n"

    text = merged(upstream, 'def f(x, y=1):\n    """Ours."""\n')

    assert text == 'def f(x, y=1):\n    """Ours."""\n    return x\n'


def test_a_raw_docstring_is_appended_to_a_raw_one():
    text = merged(
        'def f():\n    r"""Theirs: \\d."""\n', 'def f():\n    r"""Ours: \\w."""\n'
    )

    assert text == ('def f():\n    r"""Theirs: \\d.\n\n    Ours: \\w.\n    """\n')


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (
            '"""A."""',
            'r"""B."""',
            "f: the docstring's prefix 'r' differs from upstream's ''; write it with "
            "upstream's",
        ),
        (
            '"A."',
            '"""B."""',
            "f: the docstring '\"A.\"' is not written in triple double quotes, here "
            "or upstream: nothing can be appended to it",
        ),
        (
            '"""A."""',
            '("B" "C")',
            'f: the docstring \'"B" "C"\' is not written in triple double quotes, '
            "here or upstream: nothing can be appended to it",
        ),
    ],
)
def test_docstrings_that_cannot_be_joined_are_refused(
    theirs: str, ours: str, expected: str
):
    assert fault(f"def f():\n    {theirs}\n", f"def f():\n    {ours}\n") == expected
