# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What a direct reload writes to: the layers of a model, and their parameters."""

from dataclasses import dataclass, field

import torch

from vllm.model_executor.layers.quantization.in_place_loading import in_place_method

from .arrivals import Arrivals, Place
from .layerwise import get_layerwise_info
from .left_out import missing_tensors, processing_keeps_left_out
from .meta import SKIP_TENSORS
from .sanitize import restore_layer_refs
from .startup_tensors import StartupTensors, is_same_stretch, model_format_view
from .types import LayerReloadingInfo
from .utils import get_layer_tensors

__all__ = ["ReloadedLayer", "Target", "describe_layer", "find_targets"]


@dataclass
class ReloadedLayer:
    """A layer of the model: what it was at the start, and what reached it."""

    name: str
    module: torch.nn.Module
    info: LayerReloadingInfo
    startup: StartupTensors
    formats: dict[str, torch.Tensor]
    """Model format of its parameters, on the meta device."""
    names: set[str]
    """What is registered in model format: parameters and buffers."""
    targets: dict[str, "Target"] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    touched: bool = False

    @property
    def keeps_left_out(self) -> bool:
        """Whether tensors that are not sent keep what they hold."""
        return processing_keeps_left_out(self.module) and all(
            target.keeps_bytes for target in self.targets.values()
        )

    @property
    def missing(self) -> list[str]:
        """Tensors without which it cannot be processed."""
        formats = {name: target.format for name, target in self.targets.items()}
        return missing_tensors(self.info, self.arrivals, formats)

    def drop_scratch(self) -> None:
        """Frees what its targets were given for the time of the reload."""
        for target in self.targets.values():
            target.scratch = None

    def restore(self) -> None:
        """Puts the startup tensors back, with what they hold now."""
        self.startup.restore()


@dataclass
class Target:
    """A parameter that loaders write to, under all the names that it has."""

    tensor: torch.Tensor
    startup: torch.Tensor | None
    """What it held at the start; None if post-load processing had dropped it."""
    format: torch.Tensor
    view: torch.Tensor | None
    """Model format over the startup storage; None if that cannot hold it."""
    in_place: bool = False
    """Whether the layer's method gives it its model format."""
    attributes: dict[str, object] = field(default_factory=dict)
    """What it has in model format, as a weight loader."""
    owners: list[tuple[ReloadedLayer, str]] = field(default_factory=list)
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
    def is_released(self) -> bool:
        """Whether post-load processing holds elsewhere what is loaded."""
        return self.needs_scratch and self.format.numel() > 0

    @property
    def keeps_bytes(self) -> bool:
        """Whether model format and kernel format are views of the same bytes."""
        return self.in_place or (
            self.view is not None and is_same_stretch(self.view, self.startup)
        )

    def set_up(self, layer: torch.nn.Module) -> None:
        """Gives the object its model format: class, attributes, layout."""
        if not self.in_place:
            self.tensor.data = self.view if self.view is not None else self._stand_in()
            self.tensor.__dict__.clear()
            self.tensor.__dict__.update(self.format.__dict__)
            restore_layer_refs(self.tensor, layer)
        self.attributes = self.tensor.__dict__.copy()

    def _stand_in(self) -> torch.Tensor:
        """Holds no memory, and fails if it is written to."""
        one = torch.empty((), dtype=self.format.dtype, device=self.tensor.device)
        return one.expand(self.format.shape)

    def stop_observing(self) -> None:
        """Gives the object the attributes back that it has in model format."""
        self.tensor.__dict__.clear()
        self.tensor.__dict__.update(self.attributes)

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


def describe_layer(name: str, module: torch.nn.Module) -> ReloadedLayer:
    info = get_layerwise_info(module)
    tensors = get_layer_tensors(module)
    recorded = info.restore_metadata[0] | info.restore_metadata[1]
    if info.loaded_names is not None:
        names = set(info.loaded_names)
    else:
        names = recorded.keys() | (tensors.keys() & SKIP_TENSORS)
    formats = {
        n: metadata
        for n, metadata in (info.restore_metadata[0] | info.late_metadata).items()
        if n in names and not isinstance(module._buffers.get(n), torch.Tensor)
    }
    return ReloadedLayer(name, module, info, StartupTensors(module), formats, names)


def find_targets(layers: list[ReloadedLayer]) -> list[Target]:
    """Every parameter that loaders can write to, each object once."""
    targets: dict[int, Target] = {}
    for layer in layers:
        for name, metadata in layer.formats.items():
            current = layer.module._parameters.get(name)
            key = id(current) if current is not None else id(metadata)
            if key not in targets:
                in_place = in_place_method(layer.module) is not None
                targets[key] = _make_target(current, metadata, in_place)
            target = targets[key]
            target.owners.append((layer, name))
            layer.targets[name] = target
    return list(targets.values())


def _make_target(
    current: torch.Tensor | None, metadata: torch.Tensor, in_place: bool
) -> Target:
    view = None if current is None else model_format_view(current.data, metadata)
    if current is not None and in_place:
        return Target(current, current.data, metadata, current.data, in_place=True)
    if current is not None and type(current) is type(metadata):
        return Target(current, current.data, metadata, view)
    # Post-load processing put an object of another class there, or None.
    device = torch.get_default_device() if current is None else current.device
    stand_in = torch.empty(0, dtype=metadata.dtype, device=device)
    stand_in.__class__ = metadata.__class__
    return Target(stand_in, None, metadata, view)
