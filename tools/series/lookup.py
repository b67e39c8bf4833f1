# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Upstream's counterparts of a delta's statements, by name, and why there is none."""

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.delta import Definition
from tools.series.edits import FaultError

_ACCESSORS = (".setter", ".deleter", ".getter")
OVERLOAD = "overload"


def role_of(decorators: Iterable[str]) -> str:
    """What tells apart definitions of one name: property setters and overloads."""
    for decorator in decorators:
        for role in (*_ACCESSORS, OVERLOAD):
            if decorator.endswith(role):
                return role
    return ""


@dataclass(frozen=True)
class Scope:
    """A module, class or function of upstream's.

    Attributes:
        node: Its node.
        name: Its qualified name; empty for the module.
    """

    node: SgNode
    name: str = ""

    def qualified(self, label: str) -> str:
        """Qualified name of something in the scope."""
        return f"{self.name}.{label}" if self.name else label

    def definition(self, statement: Definition) -> "Scope | None":
        """Upstream's definition of the same name and role, if there is one.

        Raises:
            FaultError: There are several.
        """
        role = role_of(map(ast.unparse, statement.decorator_list))
        found = [
            node
            for node in up.definitions(self.node, statement.name)
            if role_of(up.decorators(node)) == role
        ]
        node = self._only(found, statement.name, "defines")
        return None if node is None else Scope(node, self.qualified(statement.name))

    def assignment(self, label: str) -> SgNode | None:
        """Upstream's assignment to a name, if there is one.

        Raises:
            FaultError: There are several.
        """
        return self._only(up.assignments(self.node, label), label, "assigns")

    def _only(self, found: list[SgNode], label: str, verb: str) -> SgNode | None:
        if len(found) > 1:
            raise FaultError(
                f"upstream {verb} it {len(found)} times, on lines {_lines(*found)}; "
                "only what stands there once can be merged by its name",
                self.qualified(label),
            )
        return found[0] if found else None

    def refuse_bound(self, label: str, statement: Definition | None = None) -> None:
        """Refuses to add what upstream has already, but as something else.

        Args:
            label: The name.
            statement: The definition to add, if it is one: accessors of a property
                may be added to it.

        Raises:
            FaultError: Upstream binds the name.
        """
        decorators = [] if statement is None else statement.decorator_list
        node = up.binding(self.node, label)
        if node is None or role_of(map(ast.unparse, decorators)) in _ACCESSORS:
            return
        line = node.text().partition("\n")[0]
        raise FaultError(
            f"is bound in another way upstream, on line {_lines(node)} (`{line}`); "
            "choose another name",
            self.qualified(label),
        )

    def not_found(self, label: str) -> FaultError:
        """The fault that upstream lacks what the delta edits."""
        known = map(up.defined_name, up.definitions(self.node))
        near = difflib.get_close_matches(label, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return FaultError(
            f"is not defined upstream, but the delta edits or removes it{hint}",
            self.qualified(label),
        )


def refuse_other_header(statement: Definition, scope: Scope) -> None:
    """Refuses bases or decorators that upstream's definition does not have.

    Raises:
        FaultError: The headers differ, or one is a class and the other a function.
    """
    is_class = isinstance(statement, ast.ClassDef)
    if is_class and scope.node.kind() != "class_definition":
        message = "is a function upstream, and a class in the delta"
        raise FaultError(message, scope.name)
    theirs = [ast.unparse(ast.parse(text)) for text in up.decorators(scope.node)]
    for decorator in map(ast.unparse, statement.decorator_list):
        if decorator not in theirs:
            raise FaultError(
                f"decorator @{decorator} is not among upstream's "
                f"({', '.join(theirs) or 'none'}); leave decorators out, or write the "
                "whole definition anew",
                scope.name,
            )
    if isinstance(statement, ast.ClassDef):
        bases = _bases(scope.node)
        ours = [ast.unparse(base) for base in (*statement.bases, *statement.keywords)]
        if ours and ours != bases:
            raise FaultError(
                f"bases ({', '.join(ours)}) differ from upstream's "
                f"({', '.join(bases)}); leave them out",
                scope.name,
            )


def _bases(node: SgNode) -> list[str]:
    superclasses = node.field("superclasses")
    source = superclasses.text() if superclasses is not None else ""
    tree = ast.parse(f"class _{source}: ...").body[0]
    assert isinstance(tree, ast.ClassDef)
    return [ast.unparse(base) for base in (*tree.bases, *tree.keywords)]


def _lines(*nodes: SgNode) -> str:
    return ", ".join(str(node.range().start.line + 1) for node in nodes)
