# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The census of one small source."""

from textwrap import dedent

from tools.census.census import take_census
from tools.census.sites import KINDS, Site

FILE = "vllm/model_executor/layers/example.py"


def census(source: str, **others: str) -> list[Site]:
    """Sites of a source, and of further files beside it, named without ``.py``."""
    folder = FILE.rpartition("/")[0]
    texts = {f"{folder}/{name}.py": dedent(text) for name, text in others.items()}
    sites, _ = take_census({FILE: dedent(source)} | texts)
    return sites


def found(statement: str, before: str = "pass") -> list[tuple[str, str]]:
    """Kind and text of the sites of a post-load method with this statement.

    Those of parameters alone; an empty tensor, for example, is a new one as well.

    Args:
        statement: A simple statement on ``layer``, whose ``weight``, ``scale`` and
            ``bias`` are known as parameters.
        before: The statement before it.
    """
    source = f"""
        class Method:
            def create_weights(self, layer):
                layer.register_parameter("weight", make())
                layer.register_parameter("scale", make())
                layer.register_parameter("bias", make())

            def process_weights_after_loading(self, layer):
                {before}
                {statement}
        """
    found_here = [site for site in census(source) if site.kind in KINDS]
    return [(site.kind, site.statement) for site in found_here]


def kinds(statement: str, before: str = "pass") -> list[str]:
    """Kinds of the sites of a post-load method with this statement."""
    return [kind for kind, _ in found(statement, before)]
