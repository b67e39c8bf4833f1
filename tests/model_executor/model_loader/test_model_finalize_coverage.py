# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""No model of the installed vLLM finalizes unseen: in a hook, or while it loads.

The source is read, not imported: half of the models import on a GPU only.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import regex as re

from vllm.model_executor.model_loader.reload.refusals import FINALIZES_IN_LOAD_WEIGHTS

HOOK, DECLARATION = "process_weights_after_loading", "reload_safe_post_load"

REBUILDS_MEGA_MOE = "builds MegaMoE's runtime once, and rebinds the expert weights"
MAKES_CONTIGUOUS = "rebinds weights to contiguous copies"
FUSES_ONCE = "fuses the experts once, and deletes what it fused"
NOT_SAFE_TO_RERUN = {
    "vllm.model_executor.models.expert_substitution."
    "as_expert_substitution_model.<locals>.ExpertSubstitutionModel": (
        "runs the hook of the model that it wraps, whatever that is"
    ),
    "vllm.models.deepseek_v4.amd.dspark.DSparkDeepseekV4ForCausalLM": REBUILDS_MEGA_MOE,
    "vllm.models.deepseek_v4.amd.model.DeepseekV4ForCausalLM": REBUILDS_MEGA_MOE,
    "vllm.models.deepseek_v4.amd.mtp.DeepSeekV4MTP": REBUILDS_MEGA_MOE,
    "vllm.models.dots3_note.nvidia.multimodal.Dots3NoteForCausalLM": FUSES_ONCE,
    "vllm.models.dots3_note.nvidia.vision.DotsMoEVitModel": FUSES_ONCE,
    "vllm.models.dots3_note.nvidia.vision.MoESwiGLUFFNFP8": FUSES_ONCE,
    "vllm.models.hy_v4.amd.model.HYV4ForCausalLM": MAKES_CONTIGUOUS,
    "vllm.models.hy_v4.amd.model.HYV4Model": MAKES_CONTIGUOUS,
}
"""Hooks that are refused, and why."""

FINALIZING_CALL = re.compile(
    rf"{HOOK}$|finali[sz]e|^_?build_.*(kv|buffers)|materialize_|^post_(weight_)?load"
    r"|^_repack$|^fold_"
)
"""Names of methods and functions that models finalize by."""


MADE_AGAIN = {
    "_build_fused_kv_buffers",
    "build_context_kv_weights",
    "build_fused_buffers",
    "materialize_inference_buffers",
    "materialize_residual_path_constants",
}
"""What modules derive again at the end of a reload, by `refill_derived_tensors`."""

REFUSED_BY_A_MODULE = {"vllm.models.muse_spark.nvidia.model.MuseSpark1xForCausalLM"}
"""Models that finalize one kind of module while they load, which is refused itself."""


class Class(NamedTuple):
    """A class of a model, as it stands in the source."""

    module: str
    qualname: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"

    def method(self, name: str) -> ast.FunctionDef | None:
        for statement in self.node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return statement
        return None


@cache
def model_classes() -> list[Class]:
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    package = Path(spec.origin).parent
    return [
        Class(".".join(path.relative_to(package.parent).with_suffix("").parts), *found)
        for folder in ("models", "model_executor/models")
        for path in sorted((package / folder).rglob("*.py"))
        for found in _classes(ast.parse(path.read_text(encoding="utf-8")), "")
    ]


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _classes(child, prefix)


def _has_own_hook(cls: Class) -> bool:
    hook = cls.method(HOOK)
    return hook is not None and [arg.arg for arg in hook.args.args] == ["self"]


def _is_declared(cls: Class) -> bool:
    if cls.method(DECLARATION):
        return True
    return any(
        isinstance(statement, ast.Assign)
        and ast.unparse(statement) == f"{DECLARATION} = True"
        for statement in cls.node.body
    )


def _finalizing_calls(cls: Class) -> set[str]:
    load_weights = cls.method("load_weights")
    if load_weights is None:
        return set()
    calls = (n.func for n in ast.walk(load_weights) if isinstance(n, ast.Call))
    names = {
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        for func in calls
    }
    return {name for name in names if FINALIZING_CALL.search(name)}


def test_every_hook_of_a_model_is_declared_or_refused_for_a_reason():
    undeclared = {
        cls.name
        for cls in model_classes()
        if _has_own_hook(cls) and not _is_declared(cls)
    }
    assert undeclared == NOT_SAFE_TO_RERUN.keys()


def test_only_classes_with_a_hook_declare_it():
    declared = [cls for cls in model_classes() if _is_declared(cls)]
    assert declared
    assert [cls.name for cls in declared if not _has_own_hook(cls)] == []


def test_every_model_that_finalizes_in_load_weights_is_refused():
    unseen = {
        cls.name: calls
        for cls in model_classes()
        if (calls := _finalizing_calls(cls) - MADE_AGAIN)
        and cls.name not in REFUSED_BY_A_MODULE
        and FINALIZES_IN_LOAD_WEIGHTS.isdisjoint({cls.module, cls.name})
    }
    assert not unseen


def test_what_is_refused_loads_weights():
    loading = {
        name
        for cls in model_classes()
        if cls.method("load_weights")
        for name in (cls.module, cls.name)
    }
    assert loading >= FINALIZES_IN_LOAD_WEIGHTS


def test_no_model_of_the_families_that_were_moved_is_refused():
    moved = ("deepseek_v4.nvidia", "deepseek_v4.common", "deepseek_v4.xpu")
    moved += ("deepseek_v4.cpu", "deepseek_v41", "kimi_k3", "glm5next")
    prefixes = tuple(f"vllm.models.{family}." for family in moved)
    assert [n for n in FINALIZES_IN_LOAD_WEIGHTS if n.startswith(prefixes)] == []


def test_what_is_made_again_is_made_by_a_method_that_reloads_call():
    makers = ast.unparse(
        ast.Module(
            [
                method
                for cls in model_classes()
                if (method := cls.method("refill_derived_tensors")) is not None
            ],
            [],
        )
    )
    # The residual coefficients are those of many modules, each of which has its own.
    called = MADE_AGAIN - {"materialize_residual_path_constants"}
    assert [name for name in called if f"self.{name}(" not in makers] == []
