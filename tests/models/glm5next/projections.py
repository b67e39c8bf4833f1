# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Every way to send the projections of the tiny GLM-5.x, and what must come of it.

A cold start or a reload is right if the weights are what the checkpoint stands for, if
the layers' outputs are those of a cold start in bfloat16, bit for bit, and if a reload
has moved nothing.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from tests.glm5_tiny import (
    Architecture,
    Checkpoint,
    TinyGlm5,
    WeightFormat,
    differences,
    expected_parameters,
    load_from_stream,
    load_weights,
    make_checkpoint,
    reload_in_mode,
    tensors_of,
)

FolderOf = Callable[[TinyGlm5], Path]
Named = tuple[str, torch.Tensor]

PROJECTIONS = ("kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj")
SCALES = {
    WeightFormat.FP8: ("weight_scale_inv",),
    WeightFormat.NVFP4_W4A16: ("weight_scale", "weight_scale_2"),
}
FURTHER_SCALES = {
    WeightFormat.QUARK: ("weight_scale",),
    WeightFormat.NVFP4_W4A4: ("weight_scale", "weight_scale_2"),
}
MODELS = [Architecture.CAUSAL, Architecture.MTP]
SPECS = [TinyGlm5(*pair) for pair in itertools.product(MODELS, SCALES)]
FURTHER_SPECS = [TinyGlm5(*pair) for pair in itertools.product(MODELS, FURTHER_SCALES)]
MODES = ("direct", "layerwise")


class Update(NamedTuple):
    """A way to send the projections.

    Attributes:
        order: Of the tensors of each projection, by the ends of their names. They come
            in turns, so that none is next to another of its own.
        each_alone: Whether each has a call of its own.
        activation: Where in the order an activation scale is: "first", "last" or
            "absent".
        in_bf16: A projection that is sent in bfloat16.
        left_out: A projection that is not sent.
    """

    order: tuple[str, ...]
    each_alone: bool = True
    activation: str = "absent"
    in_bf16: str = ""
    left_out: str = ""

    def __str__(self) -> str:
        calls = "each-alone" if self.each_alone else "one-call"
        parts = ["-".join(self.order), calls, f"activation-{self.activation}"]
        if self.in_bf16:
            parts.append(f"bf16-{self.in_bf16}")
        if self.left_out:
            parts.append(f"no-{self.left_out}")
        return " ".join(parts)

    def calls(self, spec: TinyGlm5, checkpoint: Checkpoint) -> list[list[Named]]:
        """The tensors of the projections, by calls of `load_weights`."""
        weights = list(self._weights(attention(spec), checkpoint))
        return [[named] for named in weights] if self.each_alone else [weights]

    def _weights(self, prefix: str, checkpoint: Checkpoint) -> Iterator[Named]:
        ends = list(self.order)
        if self.activation != "absent":
            ends.insert(0 if self.activation == "first" else len(ends), "input_scale")
        for end, projection in itertools.product(ends, PROJECTIONS):
            name = f"{prefix}{projection}.{end}"
            if projection == self.in_bf16:
                if end == "weight":
                    yield name, checkpoint.expected[name]
            elif projection != self.left_out:
                yield name, checkpoint.tensors.get(name, torch.tensor(0.02))


def spec_id(spec: TinyGlm5) -> str:
    """A name for a test of a model."""
    return f"{spec.architecture}-{spec.weight_format}"


def orders(spec: TinyGlm5) -> Iterator[tuple[str, ...]]:
    """Every order of the tensors of a projection."""
    scales = (SCALES | FURTHER_SCALES)[spec.weight_format]
    return itertools.permutations(("weight", *scales))


def ordered_updates(spec: TinyGlm5) -> list[Update]:
    """Every order, in one call and in many, with and without activation scales."""
    choices = (orders(spec), (False, True), ("first", "last", "absent"))
    return [Update(*chosen) for chosen in itertools.product(*choices)]


def mixed_updates(spec: TinyGlm5) -> list[Update]:
    """One projection in bfloat16, or left out."""
    order = next(orders(spec))
    return [
        *(Update(order, in_bf16=projection) for projection in PROJECTIONS),
        *(Update(order, left_out=projection) for projection in PROJECTIONS),
    ]


def attention(spec: TinyGlm5) -> str:
    """What the checkpoint's names of the projections begin with."""
    layer = 2 if spec.architecture is Architecture.MTP else 1
    return f"{spec.text_prefix}layers.{layer}.self_attn."


def others(spec: TinyGlm5, checkpoint: Checkpoint) -> list[Named]:
    """The tensors of a checkpoint that are not of the four projections."""
    starts = tuple(f"{attention(spec)}{projection}." for projection in PROJECTIONS)
    return [named for named in checkpoint.weights if not named[0].startswith(starts)]


class Examiner:
    """Loads a tiny model in many ways, and says what is wrong."""

    def __init__(
        self, spec: TinyGlm5, folder_of: FolderOf, rank: int = 0, tp_size: int = 1
    ) -> None:
        """Makes checkpoints, and starts a model in bfloat16 to compare with.

        Args:
            spec: The model.
            folder_of: Gives a folder with its checkpoint, or that in bfloat16.
            rank: Of this process.
            tp_size: Number of processes.
        """
        self.spec = spec
        self.folder = folder_of(spec)
        self.ranks = rank, tp_size
        self.checkpoints = [make_checkpoint(spec, seed=seed) for seed in range(3)]
        plain = replace(spec, weight_format=WeightFormat.BF16)
        weights = list(self.checkpoints[0].expected.items())
        self._reference = load_from_stream(plain, folder_of(plain), [weights])
        self._outputs: dict[tuple[int, ...], dict[str, torch.Tensor]] = {}

    def cold_start(self, update: Update) -> str:
        """Says what is wrong after a cold start; nothing if it is right."""
        from vllm.model_executor.model_loader.mtp_validation import (
            disable_mtp_completeness_check,
        )

        checkpoint = self.checkpoints[0]
        calls = update.calls(self.spec, checkpoint)
        with disable_mtp_completeness_check():
            first = [others(self.spec, checkpoint), *calls]
            model = load_from_stream(self.spec, self.folder, first)
        return self._wrong(model.module, dict.fromkeys(PROJECTIONS, 0))

    def reloads(self, updates: list[Update]) -> dict[str, str]:
        """Reloads one model with each update in each mode; says what goes wrong."""
        held = dict.fromkeys(PROJECTIONS, 0)
        weights = [self.checkpoints[0].weights]
        model = load_from_stream(self.spec, self.folder, weights)
        addresses = _addresses(model.module)
        wrong = {}
        for update, (seed, mode) in itertools.product(updates, enumerate(MODES, 1)):
            calls = update.calls(self.spec, self.checkpoints[seed])
            reload_in_mode(model, calls, mode)
            held |= {name: seed for name in PROJECTIONS if name != update.left_out}
            wrong[f"{mode} {update}"] = self._wrong(model.module, held) + (
                "" if _addresses(model.module) == addresses else " moved"
            )
        return {case: found for case, found in wrong.items() if found}

    def _wrong(self, module: torch.nn.Module, held: dict[str, int]) -> str:
        """What is wrong, given the checkpoint that each projection is from."""
        names = {name: f"{attention(self.spec)}{name}.weight" for name in held}
        sent = {
            names[name]: self.checkpoints[seed].expected[names[name]]
            for name, seed in held.items()
        }
        expected = Checkpoint({}, self.checkpoints[0].expected | sent)
        parameters = expected_parameters(self.spec, expected, *self.ranks)
        layers = [n.removesuffix(".weight") for n in parameters if _is_projection(n)]
        key = tuple(held.values())
        if key not in self._outputs:
            load_weights(self._reference, [sent.items()])
            self._outputs[key] = _outputs(self._reference.module, layers)
        outputs = _outputs(module, layers)
        found: list[Any] = [differences(module, parameters)]
        found += [n for n in layers if not _same(outputs[n], self._outputs[key][n])]
        return " ".join(str(part) for part in found if part)


def _addresses(module: torch.nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors_of(module).items()}


def _is_projection(name: str) -> bool:
    return name.endswith("_proj.weight") and "kv_b" not in name


def _outputs(module: torch.nn.Module, layers: list[str]) -> dict[str, torch.Tensor]:
    """The outputs of layers for inputs that are always the same."""
    found = {}
    for name in layers:
        layer = cast(Any, module.get_submodule(name))
        generator = torch.Generator().manual_seed(len(name))
        x = torch.randn(3, layer.weight.shape[1], generator=generator)
        found[name] = layer(x.to(layer.weight.dtype))[0]
    return found


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
