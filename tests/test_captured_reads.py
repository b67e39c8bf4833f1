# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Captured reads see what a CUDA graph would read wrongly."""

import gc
from types import SimpleNamespace

import pytest
import torch

from tests.captured_reads import CapturedReads


@pytest.fixture
def holder() -> SimpleNamespace:
    return SimpleNamespace(
        plain=torch.arange(6.0),
        strided=torch.arange(12, dtype=torch.bfloat16).view(3, 4).t(),
        held=[{"key": torch.ones(2, dtype=torch.float8_e4m3fn)}],
    )


PATHS = ("plain", "strided", "held.0.key")


def test_tensors_that_are_written_in_place_are_read_as_they_are(
    holder: SimpleNamespace,
):
    captured = CapturedReads(holder, PATHS)

    holder.plain.fill_(7)
    holder.strided.mul_(2)
    holder.held[0]["key"].view(torch.uint8).fill_(3)

    assert not captured.differences()


def test_a_moved_tensor_is_found_although_its_bytes_are_the_same(
    holder: SimpleNamespace,
):
    captured = CapturedReads(holder, PATHS)
    old = holder.plain

    holder.plain = old.clone()

    (difference,) = captured.differences()
    assert difference.startswith("plain: moved from")


def test_another_layout_at_the_same_address_is_found(holder: SimpleNamespace):
    captured = CapturedReads(holder, PATHS)

    holder.strided = holder.strided.t()

    (difference,) = captured.differences()
    assert "strides (4, 1)" in difference


def test_what_was_dropped_is_found(holder: SimpleNamespace):
    captured = CapturedReads(holder, PATHS)

    holder.plain = None

    assert captured.differences() == ["plain: is now a NoneType"]


def test_no_reference_keeps_a_storage_alive(holder: SimpleNamespace):
    captured = CapturedReads(holder, PATHS)

    holder.plain = None
    gc.collect()

    (read, *_) = captured.reads
    assert read.bytes_there() is None


@pytest.mark.parametrize(
    "value", [None, 3, torch.empty(0), torch.ones(1, device="meta")]
)
def test_what_no_graph_could_read_is_refused(value: object):
    with pytest.raises(ValueError, match="expected a tensor with elements"):
        CapturedReads(SimpleNamespace(value=value), ["value"])


def test_an_empty_list_of_paths_is_refused():
    with pytest.raises(ValueError, match="at least one path"):
        CapturedReads(SimpleNamespace(), [])
