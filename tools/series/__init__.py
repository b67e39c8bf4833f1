# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The patch series: merges the overlay in ``vllm/`` with the pinned vLLM release.

A file of the overlay is a *new module* (upstream has no file at that path) or a
*delta*: a valid Python file with only what the series adds to, or changes in,
upstream's file. Deltas import the four markers below from ``series``. They say what
happens to a named statement of upstream's, and are never run.

A pattern is an ast-grep pattern and must match exactly once in the function. Where a
statement recurs, ``inside`` and ``outside`` (a pattern of a statement that is, or is
not, around it) and ``follows`` (a pattern of the statement just before it) tell which
one is meant.

Command line: ``python -m tools.series --help``.
"""

from contextlib import AbstractContextManager

MARKERS = ("replacing", "before", "after")
"""Names of the edit blocks: ``with MARKER(pattern): statements``."""


def replacing(
    pattern: str, *, inside: str = "", outside: str = "", follows: str = ""
) -> AbstractContextManager[None]:
    """The statement that ``pattern`` matches becomes the statements of the block.

    A pattern that matches an expression inside a statement takes a block of one
    expression. A block of ``pass`` removes the statement.
    """
    raise RuntimeError("a delta is merged by tools.series, and never run")


def before(
    pattern: str, *, inside: str = "", outside: str = "", follows: str = ""
) -> AbstractContextManager[None]:
    """The block goes before the statement that ``pattern`` matches."""
    raise RuntimeError("a delta is merged by tools.series, and never run")


def after(
    pattern: str, *, inside: str = "", outside: str = "", follows: str = ""
) -> AbstractContextManager[None]:
    """The block goes after the statement that ``pattern`` matches."""
    raise RuntimeError("a delta is merged by tools.series, and never run")


def removed(name: str) -> None:
    """Removes the definition ``name`` from the module or class it is written in."""
    raise RuntimeError("a delta is merged by tools.series, and never run")
