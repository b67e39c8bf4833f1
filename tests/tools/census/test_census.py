# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The census of the composed tree, and what of it is the overlay's own."""

from textwrap import dedent

from tests.tools.census.walking import FILE, census
from tools.census.__main__ import ROOT, report, run
from tools.census.allowed import key
from tools.census.census import written_here

_MERGED = """
    def process_weights_after_loading(layer):
        del layer.weight
        del layer.weight
        del layer.scale
    """
_UPSTREAM = """
    def process_weights_after_loading(layer):
        del layer.weight

    def another(layer):
        del layer.scale
    """


def test_a_statement_is_ours_where_upstreams_function_lacks_it():
    sites = census(_MERGED)
    texts, upstream = {FILE: dedent(_MERGED)}, {FILE: dedent(_UPSTREAM)}
    first, _, third = sites
    assert written_here(sites, texts, upstream) == {key(first): 1, key(third): 1}


def test_every_site_of_the_composed_tree_is_accounted_for():
    verdict, walked = run(ROOT)
    assert verdict.is_clean, report(verdict, walked)
    # A walk that lost its way would be clean as well.
    assert len(verdict.status) > 200
