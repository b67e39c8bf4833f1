# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Memory that quantized layers hold after post-load processing, here and on stock.

Usage: `python -m benchmarks.kept_memory [SIZE]`, in the repository, with the series
installed. The layers are those of `tests/quantization/test_keep_param_objects.py`, with
weights of SIZE x SIZE values, 2048 by default. It takes minutes, on the CPU.
"""

import sys
import tempfile
from pathlib import Path

from tests.quantization import keep_param_layers
from tests.quantization.keep_param_checks import run_all
from tests.stock_vllm import run_on_stock, write_stock_tree

ALLOWED = 0.001
"""Of what stock holds, the most that kept parameters may add."""


def bytes_held(size: int) -> dict[str, int]:
    """Bytes that each layer holds, by name, in the vLLM of this process.

    Args:
        size: Input and output size of the layers, a multiple of 256.
    """
    keep_param_layers.INPUT_SIZE = size
    keep_param_layers.OUTPUT_SIZES = [size // 2, size // 2]
    return run_all(lambda outcome: outcome.nbytes)


def added_shares(here: dict[str, int], stock: dict[str, int]) -> dict[str, float]:
    """What each layer holds more than on stock, as a share of that; the worst first."""
    shares = {name: here[name] / stock[name] - 1 for name in here}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def main(size: int) -> None:
    """Prints a table of all layers; those above `ALLOWED` are marked with a star."""
    here = bytes_held(size)
    with tempfile.TemporaryDirectory() as folder:
        stock = run_on_stock(write_stock_tree(Path(folder)), bytes_held, size)
    print(f"{'layer':32} {'stock, B':>10} {'here, B':>10} {'added':>9}")
    for name, share in added_shares(here, stock).items():
        mark = " *" if share > ALLOWED else ""
        print(f"{name:32} {stock[name]:10} {here[name]:10} {share:9.3%}{mark}")


if __name__ == "__main__":
    # The process of stock finds functions by the name of their module.
    from benchmarks.kept_memory import main

    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2048)
