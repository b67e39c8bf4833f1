# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The census of a tree: its sites, and which of them the overlay wrote."""

import ast
from collections import Counter
from collections.abc import Mapping

from tools.census.allowed import Key, key
from tools.census.derived import KINDS as DERIVED
from tools.census.derived import find_derived
from tools.census.half_pairs import KINDS as HALF
from tools.census.half_pairs import find_half_pairs
from tools.census.reach import in_scope, reached
from tools.census.sites import Site, find_sites, parameter_names
from tools.census.tree import Function, Tree, parse_module
from tools.series.base import Sources
from tools.series.overlay import Overlay, compose


def composed_sources(overlay: Overlay, sources: Sources) -> dict[str, str]:
    """The Python files of the merged tree that are in scope, by path.

    Raises:
        SeriesError: The overlay does not apply.
    """
    merged = compose(overlay, sources)
    paths = [path for path in sources.paths if path.startswith("vllm/")]
    texts = {
        path: merged.get(path) or sources.read(path)
        for path in sorted({*paths, *merged})
        if path.endswith(".py")
    }
    return {path: text for path, text in texts.items() if in_scope(path, text)}


def take_census(texts: Mapping[str, str]) -> tuple[list[Site], list[Function]]:
    """Finds the sites of a tree.

    Args:
        texts: Python sources by path, as ``composed_sources`` gives them.

    Returns:
        The sites, in order of path and line, and the functions that were walked.
    """
    tree = Tree(texts)
    loaded = {name for text in texts.values() for name in parameter_names(text)}
    functions = reached(tree)
    sites = []
    for item in functions:
        is_module = item.owner is not None and tree.is_module(item.owner)
        sites += find_sites(item, is_module, loaded)
    sites += find_half_pairs(functions)
    sites += find_derived(tree, functions, loaded)
    return sorted(sites, key=lambda site: (site.path, site.line)), functions


def written_here(
    sites: list[Site], texts: Mapping[str, str], upstream: Mapping[str, str]
) -> Counter[Key]:
    """How many of each site upstream's function of that name does not have.

    Half pairs and new tensors do not count: those of the series are faults, too, or
    have to be right.

    Args:
        sites: Sites of the merged tree.
        texts: Its sources.
        upstream: Upstream's text of each file that the overlay changes; empty for a
            file that it adds.
    """
    ours: Counter[Key] = Counter()
    for path, text in upstream.items():
        if path in texts:
            here = [site for site in sites if site.path == path]
            here = [site for site in here if site.kind not in (*HALF, *DERIVED)]
            ours += Counter(map(key, here)) - _statements(path, text, here)
    return ours


def _statements(path: str, text: str, sites: list[Site]) -> Counter[Key]:
    """How often upstream's functions have the statements of these sites."""
    module = parse_module(path, text)
    functions = [one for group in module.functions.values() for one in group]
    for item in module.classes.values():
        functions += item.methods.values()
    wanted = {site.function for site in sites}
    texts = Counter(
        (function.name, ast.unparse(node))
        for function in functions
        if function.name in wanted
        for node in function.nodes
        if isinstance(node, ast.Delete | ast.Assign | ast.AnnAssign | ast.Call)
    )
    return Counter({key(one): texts[one.function, one.statement] for one in sites})
