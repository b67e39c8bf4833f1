# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Fixtures for tests on the tiny models with an indexer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_indexer import indexer_process
from tests.stock_vllm import write_stock_tree


@pytest.fixture(scope="module")
def indexer_models() -> Iterator[None]:
    """What building and loading the models needs."""
    with indexer_process():
        yield


@pytest.fixture(scope="session")
def stock_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which `import vllm` gives upstream's release."""
    return write_stock_tree(tmp_path_factory.mktemp("stock") / "tree")
