# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``check``: every delta applies to the pinned base, and says what it means."""

import tempfile
from pathlib import Path

from tools.series.base import Sources
from tools.series.overlay import Overlay, compose
from tools.series.problems import Problem, SeriesError
from tools.series.style import lint, tidy


def check(overlay: Overlay, sources: Sources) -> dict[str, str]:
    """Composes the series and looks for what composing alone does not show.

    Returns:
        The merged files, by path.

    Raises:
        SeriesError: A delta does not apply or changes nothing, or a merged file
            breaks upstream's lint rules.
    """
    composed = compose(overlay, sources)
    deltas = {path: composed[path] for path in composed if path in sources.paths}
    upstream = {path: sources.read(path) for path in deltas}
    with tempfile.TemporaryDirectory() as folder:
        formatted = tidy(upstream, Path(folder) / "upstream")
        problems = lint(deltas, Path(folder) / "merged")
    for path, text in deltas.items():
        if formatted[path] != upstream[path]:
            message = "upstream's file is not formatted: its diff would not be clean"
            problems.append(Problem(path, message))
        elif text == upstream[path]:
            message = "changes nothing; remove it (upstream may have the change)"
            problems.append(Problem(path, message))
    if problems:
        raise SeriesError(*problems)
    return composed
