# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Direct reload: loaders write checkpoint bytes into the storage that kernels read.

Start views each parameter in its model format over its own storage. Loaders write
there, in any number of calls and any order. Finish runs post-load processing for the
layers that something reached and writes what it makes into the startup tensors. No
layer is buffered. A layer whose storage cannot hold its model format gets scratch once
something for it arrives.
"""

from dataclasses import dataclass, field

import torch

from vllm.config import ModelConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import is_deferred_attention_layer

from .arrivals import Arrivals, Place, get_weight_loader, observed_loader
from .census import take_census
from .census_comparison import compare
from .layerwise import get_layerwise_info
from .left_out import missing_tensors, processing_keeps_left_out
from .meta import SKIP_LOAD_TENSORS, SKIP_TENSORS
from .post_load import process_layer, run_model_hook
from .refusals import Writable, refuse_direct_reload
from .sanitize import restore_layer_refs
from .startup_tensors import StartupTensors, is_same_stretch, model_format_view
from .tensor_digest import tensor_digest
from .types import LayerReloadingInfo
from .undefined_weights import clear_undefined, mark_undefined, undefined_layers
from .utils import get_layer_tensors

__all__ = ["DirectReload"]

logger = init_logger(__name__)

_PACKED_ON_CPU = ".handler_tensor"
"""Points to weights that a CPU kernel has packed, which every packing makes anew. No
graph captures it."""


@dataclass
class _Layer:
    """A layer of the model: what it was at the start, and what reached it."""

    name: str
    module: torch.nn.Module
    info: LayerReloadingInfo
    startup: StartupTensors
    formats: dict[str, torch.Tensor]
    """Model format of its parameters, on the meta device."""
    names: set[str]
    """What is registered in model format: parameters and buffers."""
    targets: dict[str, "_Target"] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    touched: bool = False

    @property
    def keeps_left_out(self) -> bool:
        """Whether tensors that are not sent keep what they hold."""
        return processing_keeps_left_out(self.module) and all(
            target.keeps_bytes for target in self.targets.values()
        )


@dataclass
class _Target:
    """A parameter that loaders write to, under all the names that it has."""

    tensor: torch.Tensor
    startup: torch.Tensor | None
    """What it held at the start; None if post-load processing had dropped it."""
    format: torch.Tensor
    view: torch.Tensor | None
    """Model format over the startup storage; None if that cannot hold it."""
    owners: list[tuple[_Layer, str]] = field(default_factory=list)
    scratch: torch.Tensor | None = None

    digests: dict[Place, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Its names in the model."""
        return [f"{layer.name}.{name}".lstrip(".") for layer, name in self.owners]

    @property
    def was_untied(self) -> bool:
        """Whether the first load loaded it under several names, and they were equal."""
        loads = (layer.info.first_load or () for layer, _ in self.owners)
        return sum(name in load for (_, name), load in zip(self.owners, loads)) > 1

    @property
    def needs_scratch(self) -> bool:
        return self.view is None

    @property
    def keeps_bytes(self) -> bool:
        """Whether model format and kernel format are views of the same bytes."""
        return self.view is not None and is_same_stretch(self.view, self.startup)

    def set_up(self, layer: torch.nn.Module) -> None:
        """Gives the object its model format: class, attributes, layout."""
        data = self.view
        if data is None:
            # Holds no memory, and fails if it is written to.
            one = torch.empty((), dtype=self.format.dtype, device=self.tensor.device)
            data = one.expand(self.format.shape)
        self.tensor.data = data
        self.restore_attributes(layer)

    def restore_attributes(self, layer: torch.nn.Module) -> None:
        """Attributes, weight loader among them, as when the layer was built."""
        self.tensor.__dict__.clear()
        self.tensor.__dict__.update(self.format.__dict__)
        restore_layer_refs(self.tensor, layer)

    def make_room(self) -> int:
        """Allocates scratch where it is needed.

        Returns:
            Bytes that were allocated now.
        """
        if self.view is not None or self.scratch is not None:
            return 0
        self.scratch = torch.empty_strided(
            self.format.shape,
            self.format.stride(),
            dtype=self.format.dtype,
            device=self.tensor.device,
        )
        self.tensor.data = self.scratch
        return self.scratch.untyped_storage().nbytes()


class DirectReload:
    """One direct reload of one model, from start to finish or abort."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.scratch_bytes = 0
        self._layers: list[_Layer] = []
        self._undefined_before = undefined_layers(model)
        self._conflicts: set[str] = set()

    @torch.no_grad()
    def start(self) -> None:
        """Check everything, then view all parameters in their model format.

        Raises:
            RuntimeError: The model cannot be reloaded directly; every reason is named
                and nothing has changed.
        """
        layers = [_describe(name, m) for name, m in self.model.named_modules()]
        targets = _find_targets(layers)
        refuse_direct_reload(
            self.model,
            [
                Writable(target.names[0], target.tensor, target.view)
                for target in targets
            ],
        )
        self._layers = layers
        self._census = take_census(self.model, digest=False)
        for target in targets:
            layer, name = target.owners[0]
            target.set_up(layer.module)
            for owner, own_name in target.owners:
                owner.module._parameters[own_name] = target.tensor
        for target in targets:
            self._observe(target.tensor, target.owners, target)
        for layer in layers:
            for name, buffer in layer.module._buffers.items():
                if buffer is not None and name not in SKIP_LOAD_TENSORS:
                    self._observe(buffer, [(layer, name)], None)

    def _observe(
        self,
        tensor: torch.Tensor,
        owners: list[tuple[_Layer, str]],
        target: _Target | None,
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

        tensor.observe_default_load = default_load
        tensor.weight_loader = observed_loader(
            get_weight_loader(tensor), before_call, before_write, arrived
        )

    def _compare_tied(self, target: _Target, place: Place) -> None:
        """Note it if the names of a tied parameter bring different weights."""
        digest = tensor_digest(target.tensor.data)
        if target.digests.setdefault(place, digest) != digest:
            names = " and ".join(target.names)
            self._conflicts.add(
                f"{names} were tied, since the weights of the first load were equal; "
                "those of this one differ"
            )

    def _touch(self, layer: _Layer) -> None:
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
                layer.startup.restore()
        for layer in touched:
            self._process(layer)
        self._process_attention(model_config.dtype)
        if touched:
            run_model_hook(self.model)
        self._take_census()
        for layer in touched:
            if layer.info.first_load is None and not _missing(layer):
                layer.info.first_load = layer.arrivals
        clear_undefined(self.model, [layer.name for layer in touched])
        if self.scratch_bytes:
            logger.info(
                "Direct reload used %.1f MiB of scratch, for layers whose storage "
                "cannot hold what is loaded",
                self.scratch_bytes / 2**20,
            )

    def abort(self) -> None:
        """Put every startup tensor back in its place, with whatever it holds now."""
        for layer in self._layers:
            layer.startup.restore()

    def _require_complete(self) -> None:
        problems: list[str] = []
        for layer in self._layers:
            undefined = layer.name in self._undefined_before
            if not undefined and (not layer.touched or layer.keeps_left_out):
                continue
            if missing := _missing(layer):
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

    def _process(self, layer: _Layer) -> None:
        for target in layer.targets.values():
            target.restore_attributes(target.owners[0][0].module)
        layer.startup.set_aside_all_but(layer.names)
        process_layer(layer.module)
        layer.startup.put_back()
        for target in layer.targets.values():
            target.scratch = None

    def _process_attention(self, dtype: torch.dtype) -> None:
        touched = {layer.module for layer in self._layers if layer.touched}
        for layer in self._layers:
            module = layer.module
            if is_deferred_attention_layer(module) and not touched.isdisjoint(
                module.modules()
            ):
                module.process_weights_after_loading(dtype)
                layer.startup.put_back()

    def _take_census(self) -> None:
        opaque = [
            layer.name
            for layer in self._layers
            if any(target.needs_scratch for target in layer.targets.values())
        ]
        report = compare(self._census, take_census(self.model, digest=False))
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


def _describe(name: str, module: torch.nn.Module) -> _Layer:
    info = get_layerwise_info(module)
    tensors = get_layer_tensors(module)
    recorded = info.restore_metadata[0] | info.restore_metadata[1]
    if info.loaded_names is not None:
        names = set(info.loaded_names)
    else:
        names = recorded.keys() | (tensors.keys() & SKIP_TENSORS)
    formats = {
        n: (info.restore_metadata[0] | info.late_metadata)[n]
        for n in info.restore_metadata[0].keys() | info.late_metadata.keys()
        if not isinstance(module._buffers.get(n), torch.Tensor)
    }
    return _Layer(name, module, info, StartupTensors(module), formats, names)


def _find_targets(layers: list[_Layer]) -> list[_Target]:
    """Every parameter that loaders can write to, each object once."""
    targets: dict[int, _Target] = {}
    for layer in layers:
        for name, metadata in layer.formats.items():
            current = layer.module._parameters.get(name)
            key = id(current) if current is not None else id(metadata)
            if key not in targets:
                targets[key] = _make_target(current, metadata)
            target = targets[key]
            target.owners.append((layer, name))
            layer.targets[name] = target
    return list(targets.values())


def _make_target(current: torch.Tensor | None, metadata: torch.Tensor) -> _Target:
    view = None if current is None else model_format_view(current.data, metadata)
    if current is not None and type(current) is type(metadata):
        return _Target(current, current.data, metadata, view)
    # Post-load processing put an object of another class there, or None.
    device = torch.get_default_device() if current is None else current.device
    stand_in = torch.empty(0, dtype=metadata.dtype, device=device)
    stand_in.__class__ = metadata.__class__
    return _Target(stand_in, None, metadata, view)


def _missing(layer: _Layer) -> list[str]:
    """Tensors without which a layer cannot be processed."""
    formats = {name: target.format for name, target in layer.targets.items()}
    return missing_tensors(layer.info, layer.arrivals, formats)
