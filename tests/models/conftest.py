# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Fixtures for tests on the tiny models with an indexer."""

from collections.abc import Iterator

import pytest

from tests.models.tiny_indexer import indexer_process


@pytest.fixture(scope="module")
def indexer_models() -> Iterator[None]:
    """What building and loading the models needs."""
    with indexer_process():
        yield
