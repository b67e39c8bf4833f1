# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What tests of all folders share."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.stock_vllm import write_stock_tree


@pytest.fixture(scope="session")
def stock_tree(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder from which `import vllm` gives upstream's release, for all processes."""
    root = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        root = root.parent
    tree, done = root / "stock", root / "stock.done"
    with FileLock(root / "stock.lock"):
        if not done.exists():
            write_stock_tree(tree)
            done.touch()
    return tree
