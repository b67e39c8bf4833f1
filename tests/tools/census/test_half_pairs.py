# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which loaders keep a checkpoint tensor until another one comes."""

from textwrap import dedent, indent

import pytest

from tests.tools.census.walking import census
from tools.census.__main__ import ROOT
from tools.census.census import take_census
from tools.census.reach import in_scope
from tools.series.base import Sources, load_pin

_LOADER = """
class Model:
    def load_weights(self, weights):
        pending = {}
        for name, weight in weights:
"""


def _found(statements: str, before: str = _LOADER) -> list[str]:
    source = before + indent(dedent(statements), " " * 12)
    return [site.statement for site in census(source) if site.kind == "half"]


@pytest.mark.parametrize(
    ("statements", "site"),
    [
        (
            """
            entry = pending.setdefault(name, {})
            entry["scale"] = weight
            if "weight" in entry:
                del pending[name]
            """,
            "entry['scale'] = weight",
        ),
        (
            """
            if name in pending:
                load(pending.pop(name), weight)
            else:
                pending[name] = weight.clone()
            """,
            "pending[name] = weight.clone()",
        ),
        (
            """
            pending[name] = {"weight": weight}
            load(pending.get(other))
            """,
            "pending[name] = {'weight': weight}",
        ),
        (
            "pending.setdefault(name, []).append((name, weight))",
            "pending.setdefault(name, []).append((name, weight))",
        ),
        (
            """
            held = getattr(self, "_held", None)
            held[name] = weight
            load(self._held.pop(name))
            """,
            "held[name] = weight",
        ),
    ],
)
def test_a_tensor_in_a_dictionary_that_is_looked_up_is_a_site(
    statements: str, site: str
):
    assert _found(statements) == [site]


@pytest.mark.parametrize(
    "statements",
    [
        "params[name].data[0] = weight",
        "params[name].weight_loader(params[name], weight)",
        "names = pending.setdefault(name, set())",
        "pending[name] = weight.shape\nload(pending[name])",
        "pending[name] = weight",
        "renamed = [(name, weight)]",
    ],
)
def test_a_tensor_that_is_loaded_or_passed_on_is_no_site(statements: str):
    assert _found(statements) == []


def test_a_dictionary_of_the_models_own_tensors_is_no_site():
    before = """
    class Model:
        def load_weights(self, weights):
            params = {}
            for name, param in self.named_parameters():
    """
    assert _found("params[name] = param\nload(params[name])", dedent(before)) == []


def test_a_helper_that_fills_what_it_is_given_is_found_with_its_calls():
    source = """
        def _try_load(name, tensor, buf):
            entry = buf.setdefault(name, {})
            entry[name] = tensor
            return len(entry) == 2

        class Model:
            def load_weights(self, weights):
                buf = {}
                for name, weight in weights:
                    _try_load(name, weight, buf)
        """
    found = [(site.function, site.statement) for site in census(source)]
    assert found == [
        ("_try_load", "entry[name] = tensor"),
        ("Model.load_weights", "_try_load(name, weight, buf)"),
    ]


def test_a_helper_that_is_given_no_tensor_is_no_site():
    source = """
        def record(table, key, value):
            table.setdefault(key, value)

        class Model:
            def load_weights(self, weights):
                for name, weight in weights:
                    record(self.dtypes, name, weight.dtype)
        """
    assert census(source) == []


_STOCK = {
    "vllm/model_executor/models/deepseek_mtp.py",
    "vllm/model_executor/models/deepseek_v2.py",
    "vllm/model_executor/models/mimo_v2.py",
    "vllm/model_executor/models/mimo_v2_mtp.py",
    "vllm/models/deepseek_v32/amd/model.py",
    "vllm/models/deepseek_v32/amd/mtp.py",
    "vllm/models/deepseek_v32/nvidia/model.py",
    "vllm/models/deepseek_v32/nvidia/mtp.py",
    "vllm/models/dots3_note/nvidia/model.py",
    "vllm/models/glm5next/common/model.py",
    "vllm/models/glm5next/common/mtp.py",
    "vllm/models/hy_v4/amd/model.py",
    "vllm/models/hy_v4/nvidia/model.py",
    "vllm/models/hy_v4/nvidia/mtp.py",
}
_NO_PAIRS = {
    "vllm/model_executor/model_loader/sharded_state_loader.py",
    "vllm/model_executor/models/jina.py",
    "vllm/model_executor/models/mllama4.py",
    "vllm/model_executor/models/molmo.py",
    "vllm/model_executor/models/molmo2.py",
    "vllm/models/flint/ops/linear.py",
}


def test_the_half_pairs_of_the_pinned_release_are_found():
    sources = Sources(load_pin(ROOT))
    texts = {
        path: text
        for path in sources.paths
        if path.startswith("vllm/") and path.endswith(".py")
        if in_scope(path, text := sources.read(path))
    }
    sites, _ = take_census(texts)
    assert {site.path for site in sites if site.kind == "half"} == _STOCK | _NO_PAIRS
