# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""What names of torch say about a tensor: whether it is a new one, a view, or none."""

KEEPERS = frozenset(
    {"get_live_param", "move_parameter", "refill_derived", "replace_parameter"}
)
"""Functions of the series that give a tensor which stays where it is."""

TORCH = frozenset({"F", "torch"})

MAKERS = frozenset(
    {
        *("bfloat16", "clone", "contiguous", "cpu", "cuda", "double", "float", "half"),
        *("masked_fill", "new_empty", "new_full", "new_ones", "new_tensor"),
        *("new_zeros", "reciprocal", "repeat_interleave", "to"),
    }
)
"""Methods that make a tensor, whatever is known of their object."""

VIEWS = frozenset(
    {
        *("T", "as_strided", "chunk", "data", "detach", "expand", "expand_as"),
        *("flatten", "mT", "narrow", "permute", "reshape", "select", "split"),
        *("squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
        "view_as",
    }
)
"""Methods and attributes that give a tensor's own storage, `reshape` among them."""

QUERIES = frozenset(
    {
        *("data_ptr", "device", "dim", "dtype", "element_size", "equal", "get_device"),
        *("is_contiguous", "is_cpu", "is_cuda", "is_meta", "item", "itemsize"),
        *("layout", "ndim", "nelement", "numel", "numpy", "shape", "size"),
        *("storage_offset", "stride", "tolist", "untyped_storage"),
    }
)
"""Methods and attributes of a tensor that give no tensor."""

NO_TENSORS = frozenset(
    {
        *("accelerator", "allclose", "compile", "cuda", "device", "distributed"),
        *("dtype", "equal", "finfo", "iinfo", "inference_mode", "no_grad"),
        *("numel", "promote_types", "xpu"),
    }
)
"""Names of torch that give no tensor, whatever follows on them."""

QUESTIONS = ("_is_", "_supports_", "get_", "has_", "is_", "supports_")
"""Beginnings of the names of functions of torch that give no tensor."""
