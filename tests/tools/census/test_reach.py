# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which functions count as running in a load or after it."""

import pytest

from tests.tools.census.walking import census

_DROP = "def {name}({arguments}):\n    del layer.weight\n"


def _names(source: str, **others: str) -> list[str]:
    return [site.function for site in census(source, **others)]


def test_a_function_that_no_root_calls_is_not_walked():
    assert _names(_DROP.format(name="helper", arguments="layer")) == []


@pytest.mark.parametrize(
    "name",
    ["process_weights_after_loading", "load_weights", "row_parallel_weight_loader"],
)
def test_a_root_is_walked(name):
    assert _names(_DROP.format(name=name, arguments="layer")) == [name]


def test_a_helper_is_followed_through_an_import():
    source = """
        def process_weights_after_loading(layer):
            from .helpers import drop as forget
            forget(layer)
        """
    helpers = _DROP.format(name="drop", arguments="layer")
    assert _names(source, helpers=helpers) == ["drop"]


def test_a_helper_of_an_imported_module_is_followed():
    source = """
        import vllm.model_executor.layers.helpers as helpers

        def process_weights_after_loading(layer):
            helpers.drop(layer)
        """
    helpers = _DROP.format(name="drop", arguments="layer")
    assert _names(source, helpers=helpers) == ["drop"]


def test_a_method_is_followed_into_every_subclass():
    source = """
        class Base:
            def process_weights_after_loading(self, layer):
                self.convert(layer)

        class Derived(Base):
            def convert(self, layer):
                del layer.weight

        class Unrelated:
            def convert(self, layer):
                del layer.weight
        """
    assert _names(source) == ["Derived.convert"]


def test_a_method_of_an_unknown_object_is_followed_by_its_name():
    source = """
        def process_weights_after_loading(layer):
            layer.scheme.convert(layer)

        class Scheme:
            def convert(self, layer):
                del layer.weight
        """
    assert _names(source) == ["Scheme.convert"]


def test_what_runs_at_inference_is_not_followed():
    source = """
        class Method:
            def process_weights_after_loading(self, layer):
                self.apply(layer)

            def apply(self, layer):
                del layer.weight
        """
    assert _names(source) == []


def test_a_function_that_installs_a_hook_is_walked():
    source = """
        def wrap(method):
            def hook(layer):
                del layer.weight
            method.process_weights_after_loading = hook
        """
    assert _names(source) == ["wrap"]
