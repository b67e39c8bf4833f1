# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Weight transfer engines and the reload lifecycle."""

import importlib
from types import SimpleNamespace

import pytest

from tests.distributed.toy_transfer import (
    LocalEngine,
    bad_weights,
    loaded_toy_model,
    make_engine,
    toy_weights,
    values,
)
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.model_executor.model_loader.reload import finish_reload, require_defined
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

WITH_DIRECT = {
    "nccl": "NCCLWeightTransferEngine",
    "ipc": "IPCWeightTransferEngine",
    "nccl_m2n": "M2NWeightTransferEngine",
}
WITHOUT_DIRECT = {
    "sharded_rdt": "ShardedRDTWeightTransferEngine",
    "sparse_nccl": "SparseNCCLWeightTransferEngine",
}
MODULES = {"nccl_m2n": "m2n"}


def _engine_class(backend: str) -> type[WeightTransferEngine]:
    name = (WITH_DIRECT | WITHOUT_DIRECT)[backend]
    module = f"vllm.distributed.weight_transfer.{MODULES.get(backend, backend)}_engine"
    return getattr(importlib.import_module(module), name)


def test_layerwise_is_the_default():
    assert WeightTransferConfig().reload_mode == "layerwise"


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match="reload_mode"):
        WeightTransferConfig(reload_mode="sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_engines_pass_the_mode_from_their_config(backend):
    model = loaded_toy_model(1.0)
    engine = make_engine(
        _engine_class(backend), model, backend=backend, reload_mode="direct"
    )
    address = model.first.weight.data_ptr()  # type: ignore[operator,union-attr]

    engine.start_weight_update()
    assert model.first.weight.data_ptr() == address  # type: ignore[operator,union-attr]
    model.load_weights(toy_weights(2.0).items())
    engine.finish_weight_update()

    assert values(model) == {2.0}
    assert model.first.weight.data_ptr() == address  # type: ignore[operator,union-attr]


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_engines_reload_layerwise_by_default(backend):
    model = loaded_toy_model(1.0)
    engine = make_engine(_engine_class(backend), model, backend=backend)

    engine.start_weight_update()
    assert model.first.weight.is_meta  # type: ignore[union-attr]
    model.load_weights(toy_weights(2.0).items())
    engine.finish_weight_update()

    assert values(model) == {2.0}


@pytest.mark.parametrize("backend", WITHOUT_DIRECT)
def test_engines_without_support_refuse_direct_when_they_are_created(backend):
    engine_class = _engine_class(backend)
    with pytest.raises(ValueError, match=f"{engine_class.__name__}.*direct"):
        make_engine(
            engine_class, loaded_toy_model(1.0), backend=backend, reload_mode="direct"
        )


def test_an_engine_that_does_not_declare_support_refuses_direct():
    class Undeclared(LocalEngine):
        supports_direct_reload = False

    model = loaded_toy_model(1.0)
    with pytest.raises(ValueError, match="Undeclared.*'mine'.*direct"):
        make_engine(Undeclared, model, backend="mine", reload_mode="direct")
    make_engine(Undeclared, model, backend="mine")


def test_ipc_engine_releases_the_packed_import_when_finish_fails():
    engine = make_engine(
        _engine_class("ipc"), loaded_toy_model(1.0), backend="ipc", reload_mode="direct"
    )
    closed = _count_closes(engine)

    with pytest.raises(RuntimeError, match="no reload"):
        engine.finish_weight_update()

    assert closed == [None]


def test_ipc_engine_releases_the_packed_import_when_an_update_is_aborted():
    engine = make_engine(
        _engine_class("ipc"), loaded_toy_model(1.0), backend="ipc", reload_mode="direct"
    )
    closed = _count_closes(engine)

    engine.start_weight_update()
    engine.abort_weight_update()

    assert closed == [None]


def _count_closes(engine) -> list[None]:
    closed: list[None] = []
    close = engine._packed_importer.close

    def counted() -> None:
        closed.append(None)
        close()

    engine._packed_importer.close = counted
    return closed


def test_m2n_receives_everything_through_load_weights_in_direct_mode():
    assert _m2n_in_place("layerwise") == [True, True]
    assert _m2n_in_place("direct") == [False, False]


def _m2n_in_place(mode: str) -> list[bool]:
    """Whether M2N writes the parameters of one layer past `load_weights`."""
    from vllm.distributed.weight_transfer.m2n_common import M2NWireParam

    model = loaded_toy_model(1.0)
    for param in model.first.parameters():  # type: ignore[union-attr]
        param.weight_loader = default_weight_loader  # type: ignore[union-attr]
    engine = make_engine(
        _engine_class("nccl_m2n"), model, backend="nccl_m2n", reload_mode=mode
    )
    wire = [
        M2NWireParam(f"first.{name}", "float32", tuple(param.shape), (1, 1), None)
        for name, param in model.first.named_parameters()  # type: ignore[union-attr]
    ]
    engine._prepare_source_plan(tuple(wire), num_trainer_ranks=1)
    engine._prepare_destination_plan(
        SimpleNamespace(dst_mesh_dims=[1, 1], rank_offset=1)
    )
    return [destination.direct for destination in engine._parameter_destinations]


def test_abort_without_an_update_is_a_no_op():
    model = loaded_toy_model(1.0)
    make_engine(LocalEngine, model, backend="mine").abort_weight_update()
    require_defined(model)
    assert values(model) == {1.0}


def test_abort_leaves_what_was_written_undefined():
    model = loaded_toy_model(1.0)
    engine = make_engine(LocalEngine, model, backend="mine", reload_mode="direct")
    engine.start_weight_update()
    with pytest.raises(AssertionError):
        model.load_weights(bad_weights().items())
    engine.abort_weight_update()

    with pytest.raises(RuntimeError, match="undefined"):
        require_defined(model)
    with pytest.raises(RuntimeError, match="no reload"):
        finish_reload(model, engine.model_config)
