# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Imports: where new ones go, and what counts as known."""

import pytest

from tests.tools.series.merging import expect, fault, merged

UPSTREAM = """
    # licence
    \"\"\"Doc.\"\"\"

    import os
    from typing import TYPE_CHECKING, Any

    from vllm.config import A

    if TYPE_CHECKING:
        from vllm.types import T

    logger = A(os, Any)


    def f(x: "T"): ...
    """


def test_new_imports_are_sorted_into_upstream_s():
    expect(
        UPSTREAM,
        """
        from __future__ import annotations

        import os
        import sys
        from typing import Any, Literal as L

        import vllm.envs as envs
        from vllm.config import (
            A,
            B,  # a remark
        )
        from . import sibling
        from ..parent import P

        def g():
            return L, envs, B, sibling, P, sys
        """,
        """
        # licence
        \"\"\"Doc.\"\"\"

        from __future__ import annotations

        import os
        import sys
        from typing import TYPE_CHECKING, Any
        from typing import Literal as L

        import vllm.envs as envs
        from vllm.config import A, B

        from ..parent import P
        from . import sibling

        if TYPE_CHECKING:
            from vllm.types import T

        logger = A(os, Any)


        def f(x: "T"): ...


        def g():
            return L, envs, B, sibling, P, sys
        """,
    )


def test_imports_for_type_checking_join_upstream_s():
    text = merged(
        UPSTREAM,
        """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from vllm.config import A
            from vllm.types import (
                T,
                U,
            )
            import sys

        def g(x: "U", y: "sys"): ...
        """,
    )

    assert (
        "if TYPE_CHECKING:\n    import sys\n\n    from vllm.types import T, U\n\nlogger"
    ) in text


def test_imports_for_type_checking_get_one_block_of_their_own():
    expect(
        """
        import os

        os
        """,
        """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            import sys
            from vllm.types import T

        def f(x: "T", y: "sys"): ...
        """,
        """
        import os
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            import sys

            from vllm.types import T

        os


        def f(x: "T", y: "sys"): ...
        """,
    )


@pytest.mark.parametrize(
    "known",
    [
        "if TYPE_CHECKING:\n    from m import X\n",
        "if flag:\n    from m import X\n",
        "try:\n    from m import X\nexcept ImportError:\n    X = None\n",
        "def g():\n    from m import X\n\n    X\n",
    ],
)
def test_an_import_that_upstream_has_only_under_a_condition_is_added(known: str):
    text = merged(f"import os\n\n{known}\nos\n", "from m import X\n\ndef f():\n    X\n")

    assert text.startswith("import os\n\nfrom m import X\n")


def test_an_import_keeps_the_remark_that_a_linter_needs():
    text = merged("# licence\n", "import vllm._C  # noqa: F401\n")

    assert text == "# licence\n\nimport vllm._C  # noqa: F401\n"


@pytest.mark.parametrize("upstream", ["", "x = 1\n", "# a\n\nx = 1\n"])
def test_an_import_is_added_to_a_module_without_any(upstream: str):
    text = merged(upstream, "import sys\n\ndef f():\n    sys\n")

    assert text.removeprefix("# a\n\n").startswith("import sys\n\n")


def test_imports_that_an_edit_makes_needless_are_dropped():
    expect(
        """
        import os
        import sys


        def f():
            return os, sys
        """,
        """
        from series import replacing

        def f():
            with replacing("return os, sys"):
                return sys
        """,
        """
        import sys


        def f():
            return sys
        """,
    )


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (
            "if TYPE_CHECKING:\n    x = 1",
            "line 2: only imports may stand under TYPE_CHECKING",
        ),
        (
            "if TYPE_CHECKING:\n    import sys\nelse:\n    sys = None",
            "line 1 is `if TYPE_CHECKING:",
        ),
        ("if flag:\n    import sys", "line 1 is `if flag:"),
        ("try:\n    import sys\nfinally: ...", "line 1 is `try:"),
    ],
)
def test_conditional_imports_are_refused(delta: str, expected: str):
    assert fault(UPSTREAM, delta).startswith(expected)
