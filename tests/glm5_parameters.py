# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What the parameters of a tiny GLM-5.x must hold, and which were never loaded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from tests.glm5_checkpoint import Checkpoint, Tensors
from tests.glm5_config import MLA_LAYER, MTP_LAYER, SIZES, Architecture, TinyGlm5


def expected_parameters(
    spec: TinyGlm5, checkpoint: Checkpoint, tp_rank: int = 0, tp_size: int = 1
) -> Tensors:
    """Gives the MLA parameters of a model that has loaded a checkpoint.

    Args:
        spec: The tiny model.
        checkpoint: What it has loaded.
        tp_rank: Rank of the process that the model is in.
        tp_size: Number of tensor-parallel processes.

    Returns:
        By their names in vLLM: the projections, and the two tensors that post-load
        processing derives from `kv_b_proj`.
    """
    layer, prefix = _MLA_LAYERS[spec.architecture]
    source = f"{spec.text_prefix}layers.{layer}.self_attn"

    def weight(projection: str) -> torch.Tensor:
        return checkpoint.expected[f"{source}.{projection}.weight"]

    def shard(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(tp_size, dim)[tp_rank].contiguous()

    kv_a = torch.nn.functional.pad(
        weight("kv_a_proj_with_mqa"), (0, 0, 0, spec.nope_pad)
    )
    kv_b = shard(weight("kv_b_proj"), 0)
    nope, value = SIZES["qk_nope_head_dim"], SIZES["v_head_dim"]
    w_uk_t, w_uv_t = kv_b.unflatten(0, (-1, nope + value)).split((nope, value), dim=1)
    return {
        f"{prefix}.fused_qkv_a_proj.weight": torch.cat([weight("q_a_proj"), kv_a]),
        f"{prefix}.q_b_proj.weight": shard(weight("q_b_proj"), 0),
        f"{prefix}.kv_b_proj.weight": kv_b,
        f"{prefix}.o_proj.weight": shard(weight("o_proj"), 1),
        f"{prefix}.mla_attn.mla_attn.W_UK_T": w_uk_t,
        f"{prefix}.mla_attn.mla_attn.W_UV": w_uv_t.transpose(1, 2),
    }


# Of each model class, the layer with latent attention, and the name of its attention.
_MLA_LAYERS = {
    Architecture.CAUSAL: (MLA_LAYER, f"model.layers.{MLA_LAYER}.self_attn"),
    Architecture.MULTIMODAL: (
        MLA_LAYER,
        f"language_model.model.layers.{MLA_LAYER}.self_attn",
    ),
    Architecture.MTP: (MTP_LAYER, f"model.layers.{MTP_LAYER}.mtp_block.self_attn"),
}


def differences(
    module: torch.nn.Module, expected: Mapping[str, torch.Tensor]
) -> dict[str, str]:
    """Compares parameters and buffers with what they must be, byte by byte.

    Args:
        module: The model.
        expected: Tensors by the names that the model has for them.

    Returns:
        What is wrong with each tensor that is not equal; empty if all are.
    """
    held = tensors_of(module)
    found = {
        name: _difference(held.get(name), tensor) for name, tensor in expected.items()
    }
    return {name: difference for name, difference in found.items() if difference}


def _difference(held: torch.Tensor | None, expected: torch.Tensor) -> str:
    if held is None:
        return "missing"
    if held.is_meta:
        return "on the meta device"
    if (held.shape, held.dtype) != (expected.shape, expected.dtype):
        layouts = (f"{tuple(t.shape)} in {t.dtype}" for t in (held, expected))
        return "is {}; expected {}".format(*layouts)
    differ = (_as_bytes(held) != _as_bytes(expected)).any(dim=-1)
    if not differ.any():
        return ""
    poisoned = int(_is_poison(held).sum())
    return f"{int(differ.sum())} of {held.numel()} elements differ, {poisoned} poisoned"


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Gives the bytes of a tensor, [elements, bytes of one]."""
    return tensor.detach().reshape(-1, 1).contiguous().view(torch.uint8)


def tensors_of(module: torch.nn.Module) -> Tensors:
    """Gives the parameters and buffers of a model by name, detached, not copied."""
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach() for name, tensor in held.items()}


def unloaded_parameters(module: torch.nn.Module) -> list[str]:
    """Lists the parameters that hold memory which nothing was loaded into.

    Args:
        module: A model that was built by `tests.glm5_tiny`, which poisons memory.

    Returns:
        Names of parameters with a NaN anywhere, on the meta device, or, where the
        dtype has no NaN, with the largest value everywhere. Retired ones, which no
        kernel reads, are left out.
    """
    return [
        name
        for name, parameter in module.named_parameters()
        if not getattr(parameter, "is_retired", False) and _is_unloaded(parameter)
    ]


def _is_unloaded(parameter: torch.Tensor) -> bool:
    if parameter.is_meta:
        return True
    poisoned = _is_poison(parameter)
    if parameter.is_floating_point():
        return bool(poisoned.any())
    return bool(poisoned.all()) and parameter.numel() > 0


def _poison(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max


def _is_poison(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.detach().float().isnan()
    return tensor.detach() == _poison(tensor.dtype)


@torch.no_grad()
def poison_parameters(module: torch.nn.Module) -> None:
    """Fills the parameters of a model with NaN, or with their dtype's largest value."""
    for parameter in module.parameters():
        parameter.fill_(_poison(parameter.dtype))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Has PyTorch fill new memory with what `poison_parameters` does.

    This shows where a model is left with memory that was allocated and never written.
    PyTorch does so in its deterministic mode, which otherwise only warns here.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
