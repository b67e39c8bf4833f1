# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reloads tiny quantized GLM-5.x models on the CPU, and audits every tensor.

For each model class: a cold start from a checkpoint on disk by vLLM's own loader, a
reload of a second checkpoint, and a cold start from that one. Two audits follow. The
first compares the model before and after the reload: no tensor may have moved or been
replaced, and memory may not have grown. The second compares the reloaded model with
the second cold start: no tensor may differ.

Prints a line a model, and what the audits found. Exits 0 only if they found nothing.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

logging.disable(logging.WARNING)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate  # noqa: E402
from tqdm import tqdm  # noqa: E402

from tests.glm5_tiny import (  # noqa: E402
    Architecture,
    Checkpoint,
    TinyGlm5,
    WeightFormat,
    load_from_disk,
    make_checkpoint,
    reload_layerwise,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)

if TYPE_CHECKING:
    from vllm.model_executor.model_loader.reload.audit import AuditReport

FORMATS = [form for form in WeightFormat if not form.is_nvfp4]
STEPS = ("write checkpoints", "cold start", "reload", "cold start on the second")


@dataclass(frozen=True)
class Outcome:
    """What the two audits of one model say.

    Attributes:
        spec: The tiny model.
        tensors: Number of distinct tensors that the model holds.
        changed: Number of those whose contents the reload changed, as it should.
        in_place: Findings of the first audit, without the changed contents.
        equal: The second audit.
    """

    spec: TinyGlm5
    tensors: int
    changed: int
    in_place: "AuditReport"
    equal: "AuditReport"

    @property
    def ok(self) -> bool:
        """Whether the reload changed something, and the audits found nothing."""
        return self.changed > 0 and self.in_place.ok and self.equal.ok

    @property
    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        return (
            self.spec.architecture.value,
            self.spec.weight_format.value,
            "layerwise",
            str(self.tensors),
            str(self.changed),
            str(len(self.in_place.findings)),
            str(len(self.equal.findings)),
            "ok" if self.ok else "FAILED",
        )


HEADERS = (
    "model", "format", "reload", "tensors", "changed", "moved", "differ", "audit",
)  # fmt: skip


def reload_and_audit(spec: TinyGlm5, folder: Path, progress: tqdm) -> Outcome:
    """Reloads one model and audits it.

    Args:
        spec: The tiny model.
        folder: Where the two checkpoints go.
        progress: Advances by a step for each of `STEPS`.
    """
    from vllm.model_executor.model_loader.reload.audit import (
        AuditReport,
        compare,
        compare_models,
        take_census,
    )

    steps = _announce(spec, progress)
    next(steps)
    first, second = (make_checkpoint(spec, seed=seed) for seed in (0, 1))
    folders = [_write(spec, folder / name, checkpoint) for name, checkpoint in
               (("first", first), ("second", second))]  # fmt: skip
    next(steps)
    model = load_from_disk(spec, folders[0], use_tqdm_on_load=False)
    before = take_census(model.module)
    next(steps)
    reload_layerwise(model, [second.weights])
    after = take_census(model.module)
    next(steps)
    cold = load_from_disk(spec, folders[1], use_tqdm_on_load=False)
    equal = compare_models(after, take_census(cold.module))
    progress.update()

    report = compare(before, after)
    moved = tuple(item for item in report.findings if item.kind != "changed")
    return Outcome(
        spec,
        tensors=len(after.records),
        changed=len(report.findings) - len(moved),
        in_place=AuditReport(moved, report.audited),
        equal=equal,
    )


def _announce(spec: TinyGlm5, progress: tqdm) -> Iterator[None]:
    for number, step in enumerate(STEPS):
        progress.set_description(f"{spec.architecture.value}: {step}")
        progress.update(1 if number else 0)
        yield


def _write(spec: TinyGlm5, folder: Path, checkpoint: Checkpoint) -> Path:
    return write_checkpoint(folder, spec, checkpoint.tensors)


def main() -> int:
    """Runs the example; the exit status is 0 if every audit found nothing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--format",
        type=WeightFormat,
        choices=FORMATS,
        default=WeightFormat.FP8,
        help="how the checkpoints store the projections of latent attention",
    )
    options = parser.parse_args()
    specs = [TinyGlm5(architecture, options.format) for architecture in Architecture]
    with (
        tempfile.TemporaryDirectory() as scratch,
        use_cuda_like_cpu_platform(),
        tensor_parallel_group(),
        tqdm(total=len(specs) * len(STEPS), disable=None) as progress,
    ):
        outcomes = [
            reload_and_audit(spec, Path(scratch) / spec.architecture.value, progress)
            for spec in specs
        ]
    print(tabulate([outcome.row for outcome in outcomes], HEADERS, tablefmt="simple"))
    for outcome in outcomes:
        for report in (outcome.in_place, outcome.equal):
            if not report.ok:
                print(f"\n{outcome.spec.architecture.value}:\n{report.to_table()}")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
