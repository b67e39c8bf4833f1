# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which new tensors are sites, and of which kind."""

from textwrap import indent

import pytest

from tests.tools.census.walking import census

_DERIVED = ("derived", "lazy")


def _sites(source: str) -> list[tuple[str, str]]:
    """Kind and text of the new tensors of a source."""
    found = [site for site in census(source) if site.kind in _DERIVED]
    return [(site.kind, site.statement) for site in found]


def _in_step(statements: str) -> list[tuple[str, str]]:
    """The same of a post-load method; ``layer.weight`` is a parameter."""
    return _sites(
        f"""
class Layer(nn.Module):
    def create_weights(self, layer):
        layer.register_parameter("weight", make())

    def helper(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.t().contiguous()

    def process_weights_after_loading(self, layer):
{indent(statements, " " * 8)}
"""
    )


@pytest.mark.parametrize(
    "statement",
    [
        "self.ones = torch.ones(4)",
        "layer.fused = torch.cat([layer.weight, layer.bias])",
        "layer.cast = layer.weight.float()",
        "layer.inverse = 1.0 / layer.weight",
        "layer.negative = -layer.weight",
        "layer.packed = ops.repack(layer.weight, 4)",
        "layer.copy = self.helper(layer.weight)",
        "layer.rows = layer.weight.t().contiguous()[:4]",
        "layer.pair = (layer.weight.clone(), 1)",
        "layer.table['a'] = torch.arange(4)",
        "layer.either = layer.weight.half() if flag else None",
        "layer.holder = Holder(weight=layer.weight.float())",
        "setattr(layer, 'cast', layer.weight.float())",
        "layer.register_buffer('cast', layer.weight.float())",
        "make_nvfp4_moe_quant_config(a1_gscale=1.0 / layer.weight)",
        "FusedMoEQuantConfig.make(a1_gscale=1.0 / layer.weight)",
    ],
)
def test_a_new_tensor_that_is_kept_is_a_site(statement: str):
    assert _in_step(statement) == [("derived", statement)]


@pytest.mark.parametrize(
    "statement",
    [
        "made = torch.ones(4)",
        "layer.view = layer.weight.view(-1)",
        "layer.rows = layer.weight[:4]",
        "layer.size = layer.weight.size(0) * 2",
        "layer.number = layer.weight.max().item()",
        "layer.dtype = torch.float32",
        "layer.is_cuda = torch.cuda.is_available()",
        "layer.weight.data[0] = torch.ones(4)",
        "layer.weight[0] = torch.ones(4)",
        "layer.cast = refill_derived(layer, 'cast', layer.weight.float())",
        "layer.live = replace_parameter(layer, 'weight', layer.weight.float())",
        "make_nvfp4_moe_quant_config(w1_scale=layer.weight)",
    ],
)
def test_what_is_not_new_or_not_kept_is_no_site(statement: str):
    assert _in_step(statement) == []


@pytest.mark.parametrize(
    ("before", "is_site"),
    [
        ("cast = layer.weight.float()", True),
        ("cast, size = layer.weight.float(), 1", True),
        (
            "cast = layer.weight.float()\ncast = refill_derived(layer, '_c', cast)",
            False,
        ),
        ("cast = layer.weight.float()\nif layer:\n    cast = layer.weight", True),
        ("cast = layer.weight\nif layer:\n    cast = layer.weight.float()", True),
    ],
)
def test_a_local_is_what_was_last_assigned_to_it(before: str, is_site: bool):
    expected = [("derived", "layer.cast = cast")] if is_site else []
    assert _in_step(f"{before}\nlayer.cast = cast") == expected


@pytest.mark.parametrize(
    ("returned", "annotation", "sites"),
    [
        ("x.float(), 4", "", ["layer.cast"]),
        ("make(x)", " -> tuple[torch.Tensor, int]", ["layer.cast"]),
        ("x, 4", "", []),
    ],
)
def test_a_part_of_a_result_is_what_the_function_returns_there(
    returned: str, annotation: str, sites: list[str]
):
    found = _sites(
        f"""
def pad(x: torch.Tensor){annotation}:
    return {returned}

def process_weights_after_loading(layer):
    a, b = pad(layer.x)
    layer.cast = a
    layer.size = b
"""
    )
    assert [text.split(" = ")[0] for _, text in found] == sites


_EXPERTS = """
class FusedMoEExperts:
    kept_constants = ()

class Experts(FusedMoEExperts):
    {constants}
    def __init__(self):
        self.strides = torch.ones(4)
"""


@pytest.mark.parametrize(
    ("constants", "count"), [("pass", 1), ("kept_constants = ('strides',)", 0)]
)
def test_a_constant_of_experts_is_to_be_named(constants: str, count: int):
    assert len(_sites(_EXPERTS.format(constants=constants))) == count


@pytest.mark.parametrize(("base", "count"), [("", 1), ("(nn.Module)", 0)])
def test_the_constructor_of_what_a_load_makes_counts(base: str, count: int):
    source = f"""
class Made{base}:
    def __init__(self):
        self.ids = torch.arange(4)

class NotMade:
    def __init__(self):
        self.ids = torch.arange(4)

def process_weights_after_loading(layer):
    layer.finalize = Made()
"""
    assert len(_sites(source)) == count


@pytest.mark.parametrize(
    "body",
    [
        "if self._cast is None:\n    self._cast = self.weight.float()",
        "if not hasattr(self, '_cast'):\n    self._cast = self.weight.float()",
        "if self._cast is not None:\n    return\nself._cast = self.weight.float()",
        "if x not in self._cast:\n    self._cast[x] = self.weight.float()",
        "if not self._cast:\n    setattr(self, '_cast', self.weight.float())",
        "c = self._cast\nif c is None:\n    self._cast = self.weight.float()",
    ],
)
def test_a_cache_of_weights_in_a_forward_pass_is_a_site(body: str):
    (site,) = _sites(_forward(body))
    assert site[0] == "lazy"


@pytest.mark.parametrize(
    "body",
    [
        "self._cast = self.weight.float()",
        "if self._ones is None:\n    self._ones = torch.ones(4)",
        "if self._ones is None:\n    self._ones = self.weight.new_ones(4)",
        "if self._ones is None:\n    self._ones = torch.ones(self.weight.shape[0])",
        "if self._cast is None:\n    cast = self.weight.float()",
    ],
)
def test_what_a_forward_pass_makes_each_time_or_of_no_weights_is_none(body: str):
    assert _sites(_forward(body)) == []


def _forward(body: str) -> str:
    return f"""
class Layer(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter(data)

    def forward(self, x: int):
{indent(body, " " * 8)}
"""


def test_a_cache_on_an_object_that_a_load_makes_counts_for_any_tensor():
    source = """
class Made:
    def ones(self):
        if self._ones is None:
            self._ones = torch.ones(4)
        return self._ones

def process_weights_after_loading(layer):
    layer.finalize = Made()
"""
    assert [kind for kind, _ in _sites(source)] == ["lazy"]


def test_a_cached_function_of_a_weight_is_a_site():
    source = """
class Layer(nn.Module):
    def __init__(self):
        self.weight = nn.Parameter(data)

    @cached_property
    def cast(self):
        return self.weight.float()
"""
    assert _sites(source) == [("lazy", "return self.weight.float()")]
