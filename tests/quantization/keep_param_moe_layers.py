# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Layers of routed experts, made by the MoE methods' own `create_weights`.

Only the choice of a backend is made here, and stand-ins for operators that a CPU lacks.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

NUM_EXPERTS = 3
HIDDEN_SIZE = 256
INTERMEDIATE_SIZE = 256

_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"


class Backend(NamedTuple):
    """A choice among the kernels for experts.

    Attributes:
        oracle: Module that knows the backends.
        kind: Its class of backends.
        name: The chosen backend.
        chooser: Name of the function that would choose one.
    """

    oracle: str
    kind: str
    name: str
    chooser: str

    def choose(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """What the function returns: the backend, and the class of its experts."""
        oracle = import_module(f"{_ORACLE}.{self.oracle}")
        backend = getattr(oracle, self.kind)[self.name]
        return backend, oracle.backend_to_kernel_cls(backend)[0]


def nvfp4(name: str) -> Backend:
    return Backend("nvfp4", "NvFp4MoeBackend", name, "select_nvfp4_moe_backend")


def mxfp4(name: str, chooser: str = "select_mxfp4_moe_backend") -> Backend:
    return Backend("mxfp4", "Mxfp4MoeBackend", name, chooser)


def fp8(name: str) -> Backend:
    return Backend("fp8", "Fp8MoeBackend", name, "select_fp8_moe_backend")


def int8(name: str) -> Backend:
    return Backend("int8", "Int8MoeBackend", name, "select_int8_moe_backend")


def wna16(name: str) -> Backend:
    return Backend("int_wna16", "WNA16MoEBackend", name, "select_wna16_moe_backend")


W4A8_CUTLASS = Backend("w4a8", "W4A8MoeBackend", "CUTLASS", "select_w4a8_moe_backend")
W4A8_CPU = Backend(
    "w4a8_int8", "W4A8Int8MoeBackend", "CPU_INT4", "select_w4a8_int8_moe_backend"
)


def make_experts(
    module: str,
    make: Callable[[Any, Any], Any],
    backend: Backend,
    choosing_module: str | None = None,
    has_bias: bool = False,
) -> torch.nn.Module:
    """The routed experts of a layer, with gate and up in one weight.

    Args:
        module: Name of the module of the method.
        make: Makes the method, from the module and the layer.
        backend: What it chooses.
        choosing_module: The module that chooses, where it is another one.
        has_bias: Whether the experts have biases.
    """
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

    imported = import_module(module)
    chooses = import_module(choosing_module or module)

    def get_quant_method(layer: torch.nn.Module, prefix: str) -> Any:
        with mock.patch.object(chooses, backend.chooser, backend.choose):
            return make(imported, layer)

    config: Any = SimpleNamespace(
        get_quant_method=get_quant_method,
        get_name=lambda: "chosen",
        online_quantization_config=None,
    )
    return FusedMoEFactory(
        num_experts=NUM_EXPERTS,
        top_k=1,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        params_dtype=torch.bfloat16,
        quant_config=config,
        has_bias=has_bias,
        prefix="mlp.experts",
        runner_cls=_only_the_experts,
    )


def _only_the_experts(*, routed_experts: torch.nn.Module, **rest: Any) -> Any:
    """Stands in for the runner, which a process can have once under each name."""
    return routed_experts


def expert_shards(
    layer: torch.nn.Module,
    name: str,
    param: torch.Tensor,
    random: Callable[[Any, torch.dtype], torch.Tensor],
) -> Iterator[tuple[torch.Tensor, str, str, int]]:
    """The checkpoint's tensors for a parameter, as its weight loader takes them.

    Args:
        layer: Layer that has the parameter.
        name: Name of the parameter.
        param: The parameter, in model format.
        random: Makes a tensor of a shape and dtype.
    """
    shape = list(param.shape[1:])
    shards = ["w2"]
    if name.startswith("w13_"):
        shards = ["w1", "w3"]
        if shape == [2] and "weight_shape" not in name:
            shape = []
        elif shape not in ([], [2]):
            transposed = len(shape) > 1 and getattr(param, "is_transposed", False)
            shape[int(transposed)] //= 2
    if _is_one_for_gate_and_up(layer, name, param):
        del shards[1:]  # A second load would write it again.
    for expert in range(param.shape[0]):
        for shard in shards:
            tensor = _as_in_checkpoint(layer, random(shape, param.dtype))
            yield tensor, name, shard, expert


def _is_one_for_gate_and_up(
    layer: torch.nn.Module, name: str, param: torch.Tensor
) -> bool:
    """Whether the loader writes all that an expert has of a parameter at once."""
    apart = "ModelOpt" in type(layer.quant_method).__name__ and param.ndim == 2
    return "weight_shape" in name or ("input_scale" in name and not apart)


def _as_in_checkpoint(layer: torch.nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """Undoes what the weight loader of `MoeWNA16Method` does to GPTQ tensors."""
    kinds = type(layer.quant_method).__mro__
    if all(kind.__name__ != "MoeWNA16Method" for kind in kinds):
        return tensor
    if tensor.dtype == torch.uint8:
        tensor = tensor.view(torch.int32)
    return tensor.T.contiguous()


def tensors_of_experts(method: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that the experts and their quantization config hold, by name."""
    kernel = getattr(method, "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    configs = {
        "config.": getattr(method, "moe_quant_config", None),
        "experts.config.": getattr(experts, "quant_config", None),
    }
    holders = {"experts.": experts}
    for prefix, config in configs.items():
        for part in ("_a1", "_a2", "_w1", "_w2"):
            holders[f"{prefix}{part}."] = getattr(config, part, None)
    for prefix, holder in holders.items():
        held = {} if holder is None else vars(holder)
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                yield prefix + name, value


@contextmanager
def moe_operators() -> Iterator[None]:
    """Stand-ins for the operators that turn experts into a kernel's format."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
    from vllm.model_executor.layers.fused_moe.experts.ocp_mx_emulation_moe import (
        OCP_MXQuantizationEmulationTritonExperts as OcpMxExperts,
    )
    from vllm.model_executor.layers.quantization.utils import quant_utils

    fakes: list[tuple[Any, str, Callable[..., Any]]] = [
        (ops, "gptq_marlin_moe_repack", _repack_experts),
        (ops, "awq_marlin_moe_repack", _repack_experts),
        (ops, "cutlass_encode_and_reorder_int4b_grouped", _reorder),
        (ops, "cutlass_pack_scale_fp8", _pack_scales),
        (ops, "scaled_int8_quant", _quantize_int8),
        (quant_utils, "convert_packed_uint4b8_to_signed_int4_inplace", _to_signed),
        (quant_utils, "convert_bf16_scales_to_fp8", _split_scales),
        (MarlinExperts, "is_supported_config", _supported),
        (OcpMxExperts, "is_supported_config", _supported),
        (torch.accelerator, "synchronize", lambda: None),
        (torch.accelerator, "empty_cache", lambda: None),
    ]
    with ExitStack() as stack:
        for owner, name, fake in fakes:
            stack.enter_context(mock.patch.object(owner, name, fake))
        yield


def _supported(*args: Any, **kwargs: Any) -> tuple[bool, None]:
    """What experts say of a deployment on a platform that has what they ask for."""
    return True, None


def _repack_experts(
    b_q_weight: torch.Tensor, size_k: int, size_n: int, num_bits: int, **rest: Any
) -> torch.Tensor:
    shape = len(b_q_weight), size_k // 16, size_n * (num_bits // 2)
    return b_q_weight.flip(1).reshape(shape).contiguous()


def _reorder(b_tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    strides = torch.full((len(b_tensors), 2), b_tensors.stride(1))
    return b_tensors.flip(1), strides


def _pack_scales(scales: torch.Tensor) -> torch.Tensor:
    """Eight copies of each scale, as the CUDA operator makes."""
    return scales.repeat_interleave(8, dim=-1)


def _quantize_int8(
    input: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """What the CUDA operator computes, for symmetric quantization."""
    rounded = (input.float() / scale).round().clamp(-128, 127)
    return rounded.to(torch.int8), scale, None


def _to_signed(t: torch.Tensor) -> torch.Tensor:
    """As the original, which insists on a GPU: flips the sign bit of each nibble."""
    return t.bitwise_xor_(-0x77777778)


def _split_scales(
    quant_fp8: Callable[..., Any], scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the original, which insists on a GPU, up to rounding."""
    channel = scales.float().amax(-1, keepdim=True)
    return (scales / channel).to(torch.float8_e4m3fn), channel
