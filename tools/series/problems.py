# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What can be wrong with the series, said in one line each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One fault of the series.

    Attributes:
        file: The file at fault, relative to the repository's root.
        message: What was found, what was expected, and what to do.
        definition: Qualified name of the definition at fault, or empty.
        pattern: The pattern at fault, or empty.
    """

    file: str
    message: str
    definition: str = ""
    pattern: str = ""

    def __str__(self) -> str:
        where = [self.file, self.definition, repr(self.pattern) if self.pattern else ""]
        return ": ".join([part for part in where if part] + [self.message])


class SeriesError(Exception):
    """The series cannot be used as it stands; lists every problem found."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
