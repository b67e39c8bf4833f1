# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which statements are sites, and of which kind."""

import pytest

from tests.tools.census.walking import census, found, kinds


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("del layer.weight", "delete"),
        ("delattr(layer, name)", "delete"),
        ('del layer._parameters["weight"]', "delete"),
        ('layer._parameters.pop("weight", None)', "delete"),
        ("layer.weight = None", "none"),
        ("setattr(layer, self.name, None)", "none"),
        ('layer.register_parameter("weight", None)', "none"),
        ('replace_parameter(layer, "weight", None)', "none"),
        ("layer.weight = torch.nn.Parameter(packed)", "fresh"),
        ("setattr(layer, name, ModelWeightParameter(packed))", "fresh"),
        ("layer.register_parameter(name, packed)", "fresh"),
        ("layer.weight.data = torch.empty(0)", "empty"),
        ("layer.weight = Parameter(torch.empty((0,), dtype=dtype))", "empty"),
        ('replace_parameter(layer, "weight", w.new_empty(0))', "empty"),
        ("setattr(layer, name, marlin_make_empty(device))", "empty"),
        ("layer.weight.data = packed", "rebind"),
        ("getattr(layer, name).data = packed", "rebind"),
        ("layer.weight.data, other = pack(layer.weight)", "rebind"),
        ("layer.weight.set_(packed)", "set"),
        ("layer.weight = layer.packed", "alias"),
        ("layer.anything = layer.weight.detach()", "alias"),
        ("layer.weight = swizzled", "alias"),
        ("setattr(layer, name, getattr(layer, other))", "alias"),
        ('layer.register_buffer("_scale", layer.scale.detach())', "alias"),
        ('replace_parameter(layer, "weight", layer.scale.view(-1))', "alias"),
    ],
)
def test_a_statement_that_drops_or_moves_a_parameter_is_a_site(statement, kind):
    assert found(statement) == [(kind, statement.replace('"', "'"))]


@pytest.mark.parametrize(
    "statement",
    [
        "del weight",
        "del cache[name]",
        "self.weight = None",
        "layer.locks = None",
        "layer.workspace = make_workspace()",
        "layer.weight.data.copy_(packed)",
        "layer.weight.data[0] = packed",
        'replace_parameter(layer, "weight", packed)',
        'replace_parameter(layer, "weight", layer.weight.view(-1))',
        "empty = torch.empty(0)",
    ],
)
def test_a_statement_that_keeps_every_parameter_is_no_site(statement):
    assert found(statement) == []


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ("value = torch.empty(0)", "empty"),
        ("value = Parameter(packed)", "fresh"),
        ("value = layer.bias", "alias"),
        ("value = packed if keep else None", "none"),
    ],
)
def test_a_local_counts_as_what_was_assigned_to_it(before, kind):
    assert kinds("setattr(layer, name, value)", before) == [kind]


def test_an_argument_that_is_set_to_none_and_returned_is_a_site():
    source = """
        def process_weights_after_loading(weight, scale):
            scale = None
            return weight, scale
        """
    assert [(site.kind, site.statement) for site in census(source)] == [
        ("none", "scale = None")
    ]


def test_self_is_a_layer_where_its_class_derives_from_module():
    source = """
        class Base(nn.Module):
            pass

        class Layer(Base):
            def __init__(self):
                self.weight = nn.Parameter(data)

            def process_weights_after_loading(self):
                self.weight = None
        """
    (site,) = census(source)
    assert (site.function, site.line, site.kind) == (
        "Layer.process_weights_after_loading",
        10,
        "none",
    )
