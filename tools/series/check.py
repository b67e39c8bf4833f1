# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""``check``: every delta applies to the pinned base, and says what it means."""

import ast
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
        SeriesError: A delta does not apply, imports a marker that it does not use or
            changes nothing, or a merged file breaks upstream's lint rules.
    """
    composed = compose(overlay, sources)
    deltas = {path: composed[path] for path in composed if path in sources.paths}
    upstream = {path: sources.read(path) for path in deltas}
    with tempfile.TemporaryDirectory() as folder:
        formatted = tidy(upstream, Path(folder) / "upstream")
        problems = lint(deltas, Path(folder) / "merged")
    for path, text in deltas.items():
        problems += [Problem(path, fault) for fault in _unused(overlay.files[path])]
        if formatted[path] != upstream[path]:
            message = "upstream's file is not formatted: its diff would not be clean"
            problems.append(Problem(path, message))
        elif text == upstream[path]:
            message = "changes nothing; remove it (upstream may have the change)"
            problems.append(Problem(path, message))
    if problems:
        raise SeriesError(*problems)
    return composed


def _unused(delta: str) -> list[str]:
    """Faults for markers that a delta imports and does not use."""
    tree = ast.parse(delta)
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "series"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [
        f"imports the marker {name!r} and does not use it; remove the import"
        for name in sorted(imported - used)
    ]
