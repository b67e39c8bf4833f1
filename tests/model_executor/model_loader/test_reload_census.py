# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a census records of a model, and that it holds on to nothing."""

import gc
import json
import os
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm.model_executor.model_loader.reload.census import Census, take_census
from vllm.model_executor.model_loader.reload.tensor_digest import tensor_digest


def module(**attributes: Any) -> Any:
    made = torch.nn.Module()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(shape), requires_grad=False)


def test_a_record_describes_the_tensor():
    storage = torch.arange(32, dtype=torch.bfloat16).view(4, 8)
    view = storage[1:, ::2]

    (record,) = take_census(module(x=view)).records

    assert record.names == {"x": "attribute"}
    assert record.type == "Tensor"
    assert (record.device, record.dtype) == ("cpu", "bfloat16")
    assert (record.shape, record.stride) == ((3, 4), (8, 2))
    assert record.address == view.data_ptr()
    assert record.nbytes == 24
    assert record.storage_address == storage.data_ptr()
    assert record.storage_bytes == 64
    assert record.digest == tensor_digest(view)


def test_one_object_is_one_record_and_two_objects_on_one_storage_are_two():
    weight = parameter(4)
    model = module(a=weight, b=weight, c=[weight.data])

    census = take_census(model)

    assert [list(record.names) for record in census.records] == [["a", "b"], ["c[0]"]]
    assert census.records[0].identity != census.records[1].identity
    assert census.records[0].address == census.records[1].address


def test_memory_is_counted_once_per_storage():
    storage = torch.zeros(100)
    model = module(x=storage[:10], y=storage[50:], z=torch.zeros(1))

    assert take_census(model).device_bytes == {"cpu": 404}


def test_overlapping_storages_are_counted_once():
    whole = torch.zeros(100, dtype=torch.uint8)
    part = torch.frombuffer(whole.numpy().data[50:], dtype=torch.uint8)

    assert part.untyped_storage().nbytes() < 100
    assert take_census(module(x=whole, y=part)).device_bytes == {"cpu": 100}


def test_identity_lasts_as_long_as_the_object():
    model = module(x=torch.zeros(1))

    first, second = take_census(model), take_census(model)
    model.x = torch.zeros(1)
    third = take_census(model)

    identities = [census.records[0].identity for census in (first, second, third)]
    assert identities[0] == identities[1] != identities[2]


def test_a_census_keeps_no_tensor_alive():
    model = module(x=torch.zeros(10))
    held = weakref.ref(model.x)
    census = take_census(model)

    del model.x
    gc.collect()

    assert held() is None
    assert census.records[0].name == "x"


def test_taking_a_census_changes_nothing_of_the_model():
    model = module(w=parameter(2), x=[torch.zeros(2)])
    model.w.loader = print
    attributes, version = dict(vars(model)), model.w._version

    take_census(model)

    assert dict(vars(model)) == attributes
    assert vars(model.w) == {"loader": print}
    assert model.w._version == version


def test_without_digests_only_contents_are_left_out():
    census = take_census(module(x=torch.zeros(2)), digest=False)

    assert not census.digested
    assert census.records[0].digest is None
    assert census.records[0].address is not None


@pytest.mark.parametrize("holder", [lambda t: t, lambda t: (t,)])
def test_runtime_state_has_an_address_but_no_digest(holder):
    census = take_census(
        module(kv_cache=holder(torch.zeros(2)), scratch=torch.zeros(2)),
        runtime_state=("kv_cache", "scratch"),
    )

    assert [record.runtime_state for record in census.records] == [True, True]
    assert all(record.digest is None for record in census.records)
    assert all(record.address for record in census.records)
    assert "2 of runtime state" in census.summary


def test_a_parameter_is_never_runtime_state():
    census = take_census(module(kv_cache=parameter(2)))

    assert not census.records[0].runtime_state
    assert census.records[0].digest


def test_names_that_only_resemble_runtime_state_are_digested():
    census = take_census(module(kv_cache_scale=torch.ones(1)))

    assert census.records[0].digest


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2)


def freed() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


class Raising(torch.Tensor):
    """A wrapper subclass that answers nothing."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    def __tensor_flatten__(self):
        raise OSError("no")

    @staticmethod
    def __tensor_unflatten__(*args):
        raise OSError("no")

    @classmethod
    def __torch_dispatch__(cls, *args, **kwargs):  # type: ignore[override]
        raise OSError("no")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="meta"),
        lambda: torch.ones(2, 2).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        fake,
        freed,
        Raising,
    ],
    ids=["meta", "mkldnn", "nested", "fake", "freed", "raising"],
)
def test_a_tensor_without_readable_memory_is_recorded_with_the_reason(make):
    census = take_census(module(x=[make()]))

    (record,) = census.records
    assert record.digest is None
    assert record.note
    assert "1 without readable memory" in census.summary
    assert Census.from_json(census.to_json()) == census


def test_only_a_module_has_a_census():
    with pytest.raises(ValueError, match="census of a dict.*torch.nn.Module"):
        take_census({})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_tensors_on_the_same_values_have_digests_of_their_own():
    values = torch.ones(2)
    indices = [torch.tensor([[0, last]]) for last in (1, 2)]
    pair = [
        torch.sparse_coo_tensor(index, values, (3,), is_coalesced=True)
        for index in indices
    ]
    assert pair[0]._values().data_ptr() == pair[1]._values().data_ptr()

    first, second = take_census(module(x=pair)).records

    assert first.digest != second.digest


def test_runtime_state_must_be_a_collection_of_names():
    with pytest.raises(ValueError, match=r"pass \['scratch'\]"):
        take_census(torch.nn.Module(), runtime_state="scratch")


def test_a_census_survives_json_and_pickle():
    model = module(w=parameter(2, 3), x=torch.empty(0), s=torch.eye(2).to_sparse())
    census = take_census(model)

    assert Census.from_json(census.to_json()) == census
    assert pickle.loads(pickle.dumps(census)) == census


def test_a_forked_process_is_another_process():
    census = take_census(torch.nn.Module())
    reader, writer = os.pipe()

    if (child := os.fork()) == 0:
        os.write(writer, take_census(torch.nn.Module()).process.encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 100).decode() != census.process


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("address"),
        lambda record: record.update(names={}),
        lambda record: record.update(names={"x": "weight"}),
        lambda record: record.update(shape="2"),
    ],
    ids=["no address", "no name", "unknown kind", "shape of text"],
)
def test_json_that_is_not_a_census_is_refused(change):
    content = json.loads(take_census(module(x=torch.zeros(2))).to_json())
    change(content["records"][0])

    with pytest.raises(ValueError, match="not a census: .*take the census again"):
        Census.from_json(json.dumps(content))


def test_a_name_for_two_tensors_is_refused():
    content = json.loads(take_census(module(x=torch.zeros(2))).to_json())
    content["records"] *= 2

    with pytest.raises(ValueError, match="several tensors under 'x'"):
        Census.from_json(json.dumps(content))
