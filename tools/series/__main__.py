# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Command line of the series tool: one verb a module."""

import argparse
import io
import os
import sys
from pathlib import Path

from tools.series.apply import apply
from tools.series.base import Sources, load_pin
from tools.series.check import check
from tools.series.compose import write_tree
from tools.series.diff import selected, unified_diff
from tools.series.export import export
from tools.series.installed import Installed
from tools.series.overlay import Overlay, load_overlay
from tools.series.overlay import compose as compose_overlay
from tools.series.problems import SeriesError
from tools.series.revert import revert

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb.

    Args:
        arguments: Command line; the process's own by default.

    Returns:
        Exit status: 0, or 1 after problems, which are printed to standard error.
    """
    options = _parser().parse_args(arguments)
    try:
        print(_run(options, options.root), end="", flush=True)
    except SeriesError as error:
        print(error, file=sys.stderr)
        if len(error.problems) > 1:
            print(f"{len(error.problems)} problems", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has seen enough, as with `diff | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.series",
        description="Merges the overlay in vllm/ with the pinned vLLM release.",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("check", help="every delta applies; catalogue and lint are clean")
    compose = verbs.add_parser("compose", help="write the merged tree to a folder")
    compose.add_argument("folder", type=Path, help="absent or empty")
    verbs.add_parser("apply", help="merge into the vLLM installed here")
    verbs.add_parser("revert", help="undo apply: the installed bytes come back")
    diff = verbs.add_parser("diff", help="print the unified diff against upstream")
    diff.add_argument("paths", nargs="*", help="files or folders; all by default")
    exporter = verbs.add_parser("export", help="commit the series, one commit a patch")
    exporter.add_argument("checkout", type=Path, help="git checkout of the release")
    return parser


def _run(options: argparse.Namespace, root: Path) -> str:
    if options.verb == "revert":
        count = revert(Installed(load_pin(root)))
        return _count(count, "restored", "nothing was applied")
    overlay = load_overlay(root)
    installed = Installed(overlay.pin) if options.verb == "apply" else None
    sources = Sources(overlay.pin)
    if options.verb == "check":
        composed = check(overlay, sources)
        patches = _counted(len(overlay.entries), "patch", "patches")
        return f"{patches}, {_counted(len(composed))}: all apply\n"
    composed = compose_overlay(overlay, sources)
    if installed is not None:
        return _count(apply(composed, sources, installed), "written", "up to date")
    return _write(options, overlay, composed, sources)


def _write(
    options: argparse.Namespace,
    overlay: Overlay,
    composed: dict[str, str],
    sources: Sources,
) -> str:
    if options.verb == "compose":
        count = write_tree(composed, sources, options.folder)
        return f"{_counted(count)} written to {options.folder}\n"
    if options.verb == "export":
        titles = export(overlay, composed, sources, options.checkout)
        return "".join(f"committed: {title}\n" for title in titles)
    return "".join(unified_diff(selected(composed, options.paths), sources))


def _count(number: int, done: str, nothing: str) -> str:
    return f"{_counted(number)} {done}\n" if number else f"{nothing}\n"


def _counted(number: int, one: str = "file", many: str = "files") -> str:
    return f"{number} {one if number == 1 else many}"


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.exit(main())
