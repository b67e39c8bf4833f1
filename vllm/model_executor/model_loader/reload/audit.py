# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The reload audit: did every tensor of a model stay in place, and is it right?

    before = take_census(model)
    ...  # reload
    report = compare(before, take_census(model))
    assert report.ok, report.to_table()

`compare` looks at one model at two moments: objects, addresses, layouts, contents and
memory. `compare_models` looks at two models, as after a reload and after a cold start:
names, layouts, contents and aliasing. Saved censuses are compared by

    python -m vllm.model_executor.model_loader.reload.audit before.json after.json

which exits 0 without a difference, 1 with one and 2 on bad input.

Limitations:
1. It sees what the model refers to. Tensors held only by globals, class attributes,
   the model runner, captured graphs or C++ objects are not seen. Audit a draft model as
   a model of its own.
2. Host numbers derived from weights, such as a scale kept as a float, are not tensors.
3. Contents of runtime state (`RUNTIME_STATE`), and of tensors without readable memory,
   are not compared. The summary counts them.
4. An object that several others refer to is audited under its shortest path. That one
   of them now refers to another object that the model held before is not seen.
"""

import argparse
import sys
from collections.abc import Sequence

from .census import RUNTIME_STATE, Census, TensorRecord, take_census
from .census_comparison import AuditReport, Finding, compare, compare_models

__all__ = [
    "RUNTIME_STATE",
    "AuditReport",
    "Census",
    "Finding",
    "TensorRecord",
    "compare",
    "compare_models",
    "main",
    "take_census",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two saved censuses on the command line.

    Args:
        arguments: command line without the program name; that of the process if None.

    Returns:
        0 without a difference, 1 with one, 2 if the input cannot be compared.

    """
    parser = argparse.ArgumentParser(
        prog="python -m vllm.model_executor.model_loader.reload.audit",
        description="Compare two censuses written by Census.save. Exits 0 without a "
        "difference, 1 with one, 2 on bad input.",
    )
    parser.add_argument("before", help="first census, or the warm one with --models")
    parser.add_argument("after", help="later census, or the cold one with --models")
    parser.add_argument(
        "--models",
        action="store_true",
        help="compare a warm with a cold model: names and contents, not addresses",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    options = parser.parse_args(arguments)
    comparison = compare_models if options.models else compare
    try:
        report = comparison(Census.load(options.before), Census.load(options.after))
    except (OSError, ValueError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    print(report.to_json() if options.json else report.to_table())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
