# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""In-place unpacking of quantized weights beside stock's conversion and a plain copy.

    python -m benchmarks.dequant --rows 8192 --cols 4096

Everything is measured in one call, each way in processes of its own, stock's with
upstream's vLLM, and one way after the other in several rounds, since a shared machine
is not equally fast all the time. Prints a table of times, ratios and peak memory; on
the CPU, of CPU time on one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import dequant_cases
from benchmarks.dequant_cases import Measurement
from tests.stock_vllm import run_on_stock, write_stock_tree

WAYS = ("plain_copy", "fp8_blocks", "fp8_rows", "nvfp4", "mxfp4")

_MEASURE = """
import json, sys
from benchmarks import dequant_cases
name, *arguments = json.loads(sys.argv[1])
print(json.dumps(dequant_cases.measure(getattr(dequant_cases, name), *arguments)))
"""


def measure_all(
    rows: int, cols: int, device: str, repeats: int, rounds: int
) -> dict[str, Measurement]:
    """Measures every way.

    Args:
        rows: Of the weight.
        cols: Of the weight; a multiple of 32.
        device: "cpu" or an accelerator.
        repeats: Timed runs of each way in a round.
        rounds: Number of rounds.

    Returns:
        The least time and the highest peak, by the name of the way.
    """
    arguments = (rows, cols, device, repeats)
    with tempfile.TemporaryDirectory() as folder:
        tree = write_stock_tree(Path(folder))
        measured = [_measure_round(tree, *arguments) for _ in range(rounds)]
    return {
        name: Measurement(
            min(one[name].seconds for one in measured),
            max(one[name].peak_mib for one in measured),
        )
        for name in measured[0]
    }


def _measure_round(tree: Path, *arguments: int | str) -> dict[str, Measurement]:
    stock = run_on_stock(
        tree, dequant_cases.measure, dequant_cases.stock_fp8, *arguments
    )
    return {"stock_fp8": stock} | {
        name: _measure_installed(name, *arguments) for name in WAYS
    }


def _measure_installed(name: str, *arguments: int | str) -> Measurement:
    command = [sys.executable, "-c", _MEASURE, json.dumps([name, *arguments])]
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measurement(*json.loads(done.stdout.splitlines()[-1]))


def format_table(measured: dict[str, Measurement]) -> str:
    """Gives a Markdown table, times beside stock's and beside the plain copy's."""
    stock, copy = measured["stock_fp8"].seconds, measured["plain_copy"].seconds
    lines = [
        "| way | ms | faster than stock | times a copy | peak extra MiB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, (seconds, peak) in measured.items():
        lines.append(
            f"| `{name}` | {seconds * 1e3:.1f} | {stock / seconds:.1f}x "
            f"| {seconds / copy:.1f} | {peak:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    measured = measure_all(
        options.rows, options.cols, options.device, options.repeats, options.rounds
    )
    print(f"{options.rows} x {options.cols}, {options.device}\n")
    print(format_table(measured))
    if options.json:
        numbers = {name: result._asdict() for name, result in measured.items()}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
