# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Reloads tiny quantized GLM-5.x models on the CPU, and audits every tensor.

For each model class and each format of a checkpoint: a cold start from disk by vLLM's
own loader, then reloads of other checkpoints, directly and layer by layer, with the
tensors in one call, one in each call, scales before weights, and shuffled into random
calls. Two audits follow each reload. The first compares the model with itself at the
start: no tensor may have moved or been replaced, and memory may not have grown. The
second compares it with a cold start on the checkpoint that was sent last: no tensor may
differ.

Prints a line for a model, a format and a mode, and what the audits found. Exits 0 only
if they found nothing.
"""

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

logging.disable(logging.WARNING)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate  # noqa: E402
from tqdm import tqdm  # noqa: E402

from tests.glm5_tiny import (  # noqa: E402
    Architecture,
    Checkpoint,
    GlmModel,
    TinyGlm5,
    WeightFormat,
    load_from_disk,
    make_checkpoint,
    reload_direct,
    reload_layerwise,
    run_tp2,
    tensor_parallel_group,
    use_cuda_like_cpu_platform,
    write_checkpoint,
)

if TYPE_CHECKING:
    from vllm.model_executor.model_loader.reload.audit import Census

Weights = list[tuple[str, Any]]


def one_call(weights: Weights) -> list[Weights]:
    """All tensors in one call of `load_weights`, as from disk."""
    return [weights]


def per_tensor(weights: Weights) -> list[Weights]:
    """One tensor a call, as some weight transfer engines do."""
    return [[item] for item in weights]


def scales_first(weights: Weights) -> list[Weights]:
    """Every scale before every weight, in two calls."""
    scales = [item for item in weights if "scale" in item[0]]
    return [scales, [item for item in weights if "scale" not in item[0]]]


def shuffled(weights: Weights) -> list[Weights]:
    """Random order, cut into calls at random; the same in every run."""
    chooser = random.Random(0)
    weights = chooser.sample(weights, len(weights))
    cuts = sorted(chooser.choices(range(len(weights)), k=5))
    pairs = zip([0, *cuts], [*cuts, len(weights)], strict=True)
    return [weights[start:end] for start, end in pairs]


SPLITS: dict[str, Callable[[Weights], list[Weights]]] = {
    "one-call": one_call,
    "per-tensor": per_tensor,
    "scales-first": scales_first,
    "random": shuffled,
}
MODES: dict[str, Callable[[GlmModel, Iterable[Weights]], None]] = {
    "layerwise": reload_layerwise,
    "direct": reload_direct,
}
FORMATS = (
    WeightFormat.BF16,
    WeightFormat.FP8,
    WeightFormat.QUARK,
    WeightFormat.NVFP4_W4A16,
    WeightFormat.NVFP4_W4A4,
)
SEEDS = (1, 2)
"""Of the checkpoints that are reloaded in turn; the first start is from seed 0."""


@dataclass
class Outcome:
    """What the audits of one model, format and mode say, over all splits.

    Attributes:
        spec: The tiny model.
        mode: How it was reloaded.
        tp: Number of tensor-parallel ranks.
        tensors: Number of distinct tensors that the model holds.
        changed: Least number of those whose contents one reload changed, as it should.
        reloads: Number of reloads.
        moved: What the first audit found, without the changed contents.
        differing: What the second audit found.
    """

    spec: TinyGlm5
    mode: str
    tp: int
    tensors: int = 0
    changed: int = sys.maxsize
    reloads: int = 0
    moved: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether each reload changed something, and no audit found a fault."""
        return self.changed > 0 and not self.moved and not self.differing

    @property
    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        return (
            self.spec.architecture.value,
            self.spec.weight_format.value,
            self.mode,
            str(self.tp),
            str(self.reloads),
            str(self.tensors),
            str(self.changed),
            str(len(self.moved)),
            str(len(self.differing)),
            "ok" if self.ok else "FAILED",
        )


HEADERS = (
    "model", "format", "mode", "tp", "reloads", "tensors", "changed", "moved",
    "differ", "audit",
)  # fmt: skip


def reload_and_audit(
    spec: TinyGlm5, folder: Path, modes: Iterable[str], splits: Iterable[str], tp: int
) -> list[Outcome]:
    """Starts a model, and reloads and audits it in each mode and each split.

    Args:
        spec: The tiny model.
        folder: Where checkpoints go; each rank needs its own.
        modes: Names of `MODES`.
        splits: Names of `SPLITS`.
        tp: Number of ranks, for the table.

    Returns:
        An outcome for each mode.
    """
    from vllm.model_executor.model_loader.reload.audit import take_census

    checkpoints = {seed: make_checkpoint(spec, seed=seed) for seed in (0, *SEEDS)}
    cold = {seed: _cold_census(spec, folder, checkpoints[seed]) for seed in SEEDS}
    first = write_checkpoint(folder / "first", spec, checkpoints[0].tensors)
    model = load_from_disk(spec, first, use_tqdm_on_load=False)
    at_start = take_census(model.module)
    outcomes = [Outcome(spec, mode, tp, len(at_start.records)) for mode in modes]
    seeds = iter(SEEDS * len(outcomes) * len(SPLITS))
    before = at_start
    for outcome in outcomes:
        for split in splits:
            seed = next(seeds)
            calls = SPLITS[split](list(checkpoints[seed].weights))
            MODES[outcome.mode](model, calls)
            after = take_census(model.module)
            _audit(outcome, at_start, before, after, cold[seed])
            before = after
    return outcomes


def _cold_census(spec: TinyGlm5, folder: Path, checkpoint: Checkpoint) -> "Census":
    from vllm.model_executor.model_loader.reload.audit import take_census

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = write_checkpoint(Path(scratch), spec, checkpoint.tensors)
        return take_census(load_from_disk(spec, path, use_tqdm_on_load=False).module)


def _audit(
    outcome: Outcome,
    at_start: "Census",
    before: "Census",
    after: "Census",
    cold: "Census",
) -> None:
    from vllm.model_executor.model_loader.reload.audit import compare, compare_models

    kinds = Counter(finding.kind for finding in compare(before, after).findings)
    outcome.reloads += 1
    outcome.changed = min(outcome.changed, kinds["changed"])
    outcome.moved += [
        str(finding)
        for finding in compare(at_start, after).findings
        if finding.kind != "changed"
    ]
    outcome.differing += [str(item) for item in compare_models(after, cold).findings]


def _run(
    specs: list[TinyGlm5], modes: list[str], splits: list[str], tp: int
) -> list[Outcome]:
    """Runs all of a rank; the progress is that of the first."""
    from vllm.distributed import get_tensor_model_parallel_rank

    outcomes = []
    hide = None if get_tensor_model_parallel_rank() == 0 else True
    with tempfile.TemporaryDirectory() as scratch:
        for spec in (progress := tqdm(specs, disable=hide)):
            progress.set_description(
                f"{spec.architecture.value}, {spec.weight_format.value}, {tp} ranks"
            )
            folder = Path(scratch) / f"{spec.architecture}-{spec.weight_format}"
            folder.mkdir()
            outcomes += reload_and_audit(spec, folder, modes, splits, tp)
    return outcomes


def _run_on_ranks(
    specs: list[TinyGlm5], modes: list[str], splits: list[str], tp: int
) -> list[Outcome]:
    """Runs all, on as many ranks as asked for; what each rank found counts."""
    if tp == 1:
        with use_cuda_like_cpu_platform(), tensor_parallel_group():
            return _run(specs, modes, splits, tp)
    first, second = run_tp2(_run, specs, modes, splits, tp)
    for ours, others in zip(first, second, strict=True):
        ours.moved += others.moved
        ours.differing += others.differing
        ours.changed = min(ours.changed, others.changed)
    return first


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    several: dict[str, Any] = dict(nargs="+")
    parser.add_argument(
        "--format",
        type=WeightFormat,
        choices=list(WeightFormat),
        default=list(FORMATS),
        help="how checkpoints store the projections that vLLM runs in bfloat16",
        **several,
    )
    parser.add_argument(
        "--mode", choices=MODES, default=list(MODES), help="how to reload", **several
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        default=list(SPLITS),
        help="how the tensors are spread over calls of load_weights",
        **several,
    )
    parser.add_argument(
        "--tp",
        type=int,
        choices=(1, 2),
        default=[1],
        help="numbers of tensor-parallel ranks",
        **several,
    )
    return parser.parse_args()


def main() -> int:
    """Runs the example; the exit status is 0 if every audit found nothing."""
    options = _options()
    specs = [
        TinyGlm5(architecture, weight_format)
        for architecture in Architecture
        for weight_format in options.format
    ]
    outcomes = [
        outcome
        for tp in options.tp
        for outcome in _run_on_ranks(specs, options.mode, options.split, tp)
    ]
    print(tabulate([outcome.row for outcome in outcomes], HEADERS, tablefmt="simple"))
    for outcome in outcomes:
        for finding in (*outcome.moved, *outcome.differing):
            print(f"{' '.join(outcome.row[:4])}: {finding}")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
