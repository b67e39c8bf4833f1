# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Command line of the census."""

import gc
import sys
from collections import Counter
from pathlib import Path

from tabulate import tabulate

from tools.census.allowed import KINDS, Verdict, judge, load_entries
from tools.census.census import composed_sources, take_census, written_here
from tools.series.base import Sources
from tools.series.overlay import load_overlay
from tools.series.problems import SeriesError

ROOT = Path(__file__).resolve().parents[2]
_STATUSES = ("series", "allowed", "pending", "unlisted")


def run(root: Path) -> tuple[Verdict, int]:
    """Takes the census of a checkout.

    Returns:
        The verdict, and the number of functions that were walked.

    Raises:
        SeriesError: The overlay does not apply.
        ValueError: One of the lists is at fault.
    """
    gc.disable()  # Syntax trees have no garbage; to look for it doubles the time.
    try:
        return _run(root)
    finally:
        gc.enable()


def _run(root: Path) -> tuple[Verdict, int]:
    overlay = load_overlay(root)
    sources = Sources(overlay.pin)
    texts = composed_sources(overlay, sources)
    sites, functions = take_census(texts)
    upstream = {
        path: sources.read(path) if path in sources.paths else ""
        for path in overlay.files
    }
    ours = written_here(sites, texts, upstream)
    return judge(sites, ours, load_entries()), len(functions)


def report(verdict: Verdict, walked: int) -> str:
    """The table of counts, what is pending, and every fault in full."""
    counts = Counter((site.kind, status) for site, status in verdict.status)
    totals = Counter(status for _, status in verdict.status)
    rows = [(kind, [counts[kind, one] for one in _STATUSES]) for kind in KINDS]
    rows.append(("total", [totals[one] for one in _STATUSES]))
    table = [[kind, *numbers, sum(numbers)] for kind, numbers in rows]
    lines = [tabulate(table, headers=["kind", *_STATUSES, "total"])]
    lines.append(f"{walked} functions walked")
    if verdict.rows:
        listed = ", ".join(f"{row} ({n})" for row, n in sorted(verdict.rows.items()))
        lines.append(f"pending, by row of the site map: {listed}")
    lines += [
        f"{site.path}:{site.line}: {site.function}: {site.kind}: {site.statement}: "
        "is not listed; convert it, or add it to tools/census/allowed.toml"
        for site, status in verdict.status
        if status == "unlisted"
    ]
    lines += [
        f"{': '.join(one)}: is listed, but no such statement is left; "
        "remove it from tools/census"
        for one in verdict.stale
    ]
    return "\n".join(lines)


def main() -> int:
    """Prints the census.

    Returns:
        Exit status: 1 if a site is not listed, or a listed one does not exist.
    """
    try:
        verdict, walked = run(ROOT)
    except (SeriesError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(report(verdict, walked))
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
