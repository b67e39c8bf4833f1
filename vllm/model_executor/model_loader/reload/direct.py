# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Direct reload: loaders write checkpoint bytes into the storage that kernels read.

Start views each parameter in its model format over its own storage. Loaders write
there, in any number of calls and any order. Finish runs post-load processing for the
layers that something reached and writes what it makes into the startup tensors. No
layer is buffered. A layer whose storage cannot hold its model format gets scratch once
something for it arrives.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from vllm.config import ModelConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.in_place_loading import in_place_method

from .arrivals import Place, get_weight_loader, observed_loader
from .census import Census, take_census
from .census_comparison import compare
from .direct_targets import ReloadedLayer, Target, describe_layer, find_targets
from .host_numbers import HostNumbers
from .left_out import incomplete_in_place
from .meta import SKIP_LOAD_TENSORS
from .post_load import process_layer, run_model_hook
from .refusals import Writable, refuse_direct_reload
from .tensor_digest import tensor_digest
from .undefined_weights import clear_undefined, mark_undefined, undefined_layers

__all__ = ["DirectReload"]

logger = init_logger(__name__)

_PACKED_ON_CPU = ".handler_tensor"
"""Points to weights that a CPU kernel has packed, which every packing makes anew. No
graph captures it."""


_at_startup: WeakKeyDictionary[torch.nn.Module, Census] = WeakKeyDictionary()
"""Each model as it was before the reload, or before the first one that failed."""


class DirectReload:
    """One direct reload of one model, from start to finish or abort."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.scratch_bytes = 0
        self._layers: list[ReloadedLayer] = []
        self._undefined_before = undefined_layers(model)
        self._host_numbers = HostNumbers(model)
        self._conflicts: set[str] = set()

    @torch.no_grad()
    def start(self) -> None:
        """Check everything, then view all parameters in their model format.

        Raises:
            RuntimeError: The model cannot be reloaded directly; every reason is named
                and nothing has changed.
        """
        layers = [describe_layer(name, m) for name, m in self.model.named_modules()]
        targets = find_targets(layers)
        refuse_direct_reload(
            self.model,
            [
                Writable(target.names[0], target.tensor, target.view)
                for target in targets
            ],
        )
        self._layers = layers
        # After a failure, graphs still read what they did before it.
        if not self._undefined_before or self.model not in _at_startup:
            _at_startup[self.model] = take_census(self.model, digest=False)
        for target in targets:
            target.set_up(target.owners[0][0].module)
            for owner, own_name in target.owners:
                parameters: dict[str, Any] = owner.module._parameters
                parameters[own_name] = target.tensor
        for target in targets:
            self._observe(target.tensor, target.owners, target)
        for layer in layers:
            for name, buffer in layer.module._buffers.items():
                if buffer is not None and name not in SKIP_LOAD_TENSORS:
                    self._observe(buffer, [(layer, name)], None)

    def _observe(
        self,
        tensor: torch.Tensor,
        owners: list[tuple[ReloadedLayer, str]],
        target: Target | None,
    ) -> None:
        def before_call() -> None:
            if target is not None:
                self.scratch_bytes += target.make_room()

        def before_write() -> None:
            for layer, _ in owners:
                self._touch(layer)

        def arrived(place: Place, numel: int) -> None:
            for layer, name in owners:
                layer.arrivals.add(name, place, numel)
            if target is not None and target.was_untied:
                self._compare_tied(target, place)

        def default_load() -> None:
            before_call()
            before_write()
            for layer, name in owners:
                layer.arrivals.add(name, (), tensor.numel())

        tensor.observe_default_load = default_load  # type: ignore[attr-defined]
        tensor.weight_loader = observed_loader(  # type: ignore[attr-defined]
            get_weight_loader(tensor), before_call, before_write, arrived
        )

    def _compare_tied(self, target: Target, place: Place) -> None:
        """Note it if the names of a tied parameter bring different weights."""
        digest = tensor_digest(target.tensor.data)
        if target.digests.setdefault(place, digest) != digest:
            names = " and ".join(target.names)
            self._conflicts.add(
                f"{names} were tied, since the weights of the first load were equal; "
                "those of this one differ"
            )

    def _touch(self, layer: ReloadedLayer) -> None:
        """Prepare a layer for the first write to it."""
        if layer.touched:
            return
        layer.touched = True
        mark_undefined(self.model, layer.name)
        fresh = not layer.keeps_left_out
        for name, target in layer.targets.items():
            self.scratch_bytes += target.make_room()
            value = layer.info.creation_values.get(name)
            if fresh and value is not None:
                # What was loaded here before is gone: post-load processing has
                # rewritten it, and tells by this value what was not loaded.
                target.tensor.data.fill_(value)

    @torch.no_grad()
    def finish(self, model_config: ModelConfig) -> None:
        """Process the layers that something reached.

        Args:
            model_config: Its dtype is what attention layers are processed for.

        Raises:
            RuntimeError: A layer did not get all that it needs, or a tensor that
                kernels read did not stay in place. The layers that were written to
                stay undefined.
        """
        self._require_complete()
        touched = [layer for layer in self._layers if layer.touched]
        for layer in self._layers:
            if not layer.touched:
                layer.restore()
                layer.drop_scratch()
        for layer in touched:
            self._process(layer)
        self._process_attention(model_config.dtype)  # type: ignore[arg-type]
        self._host_numbers.require_unchanged()
        # Also where nothing arrived: it may gather from other ranks.
        run_model_hook(self.model)
        self._take_census()
        for layer in touched:
            if layer.info.first_load is None and not layer.missing:
                layer.info.first_load = layer.arrivals
        cleared = self._undefined_before | {layer.name for layer in touched}
        clear_undefined(self.model, cleared)
        _at_startup.pop(self.model, None)
        if self.scratch_bytes:
            logger.info(
                "Direct reload used %.1f MiB of scratch, for layers whose storage "
                "cannot hold what is loaded",
                self.scratch_bytes / 2**20,
            )

    def abort(self) -> None:
        """Put every startup tensor back in its place, with whatever it holds now."""
        for layer in self._layers:
            layer.restore()
            layer.drop_scratch()
            if layer.touched and (method := in_place_method(layer.module)):
                method.forget_loaded(layer.module)
        self._host_numbers.restore()

    def _require_complete(self) -> None:
        problems: list[str] = []
        for layer in self._layers:
            undefined = layer.name in self._undefined_before
            if method := in_place_method(layer.module):
                if layer.touched or undefined:
                    problems += incomplete_in_place(
                        layer.name,
                        layer.module,
                        method,
                        layer.info,
                        layer.arrivals,
                        undefined,
                    )
                continue
            if not undefined and (not layer.touched or layer.keeps_left_out):
                continue
            if missing := layer.missing:
                reason = ", undefined since a failed reload," if undefined else ""
                problems.append(f"{layer.name}{reason} misses {', '.join(missing)}")
        if self._conflicts:
            raise RuntimeError(
                "; ".join(sorted(self._conflicts))
                + ". Restart the engine with the new weights"
            )
        if problems:
            raise RuntimeError(
                "the reload is incomplete, and these layers cannot be processed "
                "without all of their tensors:\n  "
                + "\n  ".join(problems)
                + "\nSend all tensors of these layers in one reload"
            )

    def _process(self, layer: ReloadedLayer) -> None:
        for target in layer.targets.values():
            target.stop_observing()
        layer.startup.set_aside_all_but(layer.names)
        process_layer(layer.module)
        layer.startup.put_back()
        layer.drop_scratch()

    def _process_attention(self, dtype: torch.dtype) -> None:
        touched = {layer.module for layer in self._layers if layer.touched}
        for layer in self._layers:
            module = layer.module
            if is_deferred_attention_layer(module) and (
                layer.name in self._undefined_before
                or not touched.isdisjoint(module.modules())
            ):
                module.process_weights_after_loading(dtype)  # type: ignore[operator]
                layer.startup.put_back()

    def _take_census(self) -> None:
        opaque = [
            layer.name
            for layer in self._layers
            if any(target.is_released for target in layer.targets.values())
        ]
        census = take_census(self.model, digest=False)
        report = compare(_at_startup[self.model], census)
        findings = [
            finding
            for finding in report.findings
            if not any(finding.name.startswith(f"{name}.") for name in opaque)
            and not finding.name.endswith(_PACKED_ON_CPU)
            and not (opaque and finding.kind == "grown")
        ]
        if findings:
            raise RuntimeError(
                f"{len(findings)} tensors that kernels may read did not stay in place "
                "during a direct reload:\n  "
                + "\n  ".join(str(finding) for finding in findings[:20])
                + '\nUse reload_mode="layerwise", or restart the engine'
            )
