# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The header of a function whose body is made of edit blocks."""

import ast
import textwrap
from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.series.delta import Delta, Function
from tools.series.edits import Edit, FaultError, addition, replacement
from tools.series.upstream import span

_VARIADIC = ("*", "**")


@dataclass(frozen=True)
class _Parameter:
    kind: str
    argument: ast.arg
    default: ast.expr | None

    @property
    def name(self) -> str:
        return self.argument.arg

    @property
    def contract(self) -> tuple[str, str, str]:
        """What a caller sees of it: all but the annotation."""
        return self.kind, self.name, _dump(self.default)


def signature_edits(
    function: SgNode, changed: Function, delta: Delta, name: str
) -> list[Edit]:
    """Edits that bring upstream's header to what the delta's header says.

    The delta repeats upstream's parameters; their annotations may be left out. It may
    add parameters that have a default, and give other annotations.

    Args:
        function: Upstream's function.
        changed: The delta's function.
        delta: The delta.
        name: Qualified name of the function.

    Raises:
        FaultError: Names, kinds, order or defaults differ from upstream's.
    """
    column = function.range().start.column
    tree = ast.parse(textwrap.dedent(" " * column + function.text()))
    upstream = tree.body[0]
    assert isinstance(upstream, ast.FunctionDef | ast.AsyncFunctionDef)
    theirs = {parameter.name: parameter for parameter in _parameters(upstream.args)}
    ours = _parameters(changed.args)
    _check(upstream, changed, name)
    nodes = _parameter_nodes(function)
    edits = [
        _annotation_edit(nodes[parameter.name], delta, parameter.argument, name)
        for parameter in ours
        if parameter.name in theirs
        and _changes(parameter.argument.annotation, theirs[parameter.name].argument)
    ]
    edits += _added_parameters(function, nodes, ours, delta, name)
    if changed.returns and _dump(changed.returns) != _dump(upstream.returns):
        edits.append(_return_edit(function, delta.expression(changed.returns), name))
    return edits


def _check(upstream: Function, changed: Function, name: str) -> None:
    theirs = _parameters(upstream.args)
    names = [parameter.name for parameter in theirs]
    ours = _parameters(changed.args)
    shared = [parameter.contract for parameter in ours if parameter.name in names]
    callable_without = all(
        parameter.default is not None or parameter.kind in _VARIADIC
        for parameter in ours
        if parameter.name not in names
    )
    same_kind = type(upstream) is type(changed)
    if (
        same_kind
        and callable_without
        and shared == [parameter.contract for parameter in theirs]
    ):
        return
    raise FaultError(
        f"signature {_header(changed)} differs from upstream's {_header(upstream)}; "
        "repeat upstream's (annotations may be left out, parameters with a default "
        "may be added), or write the whole function anew",
        name,
    )


def _header(function: Function) -> str:
    prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{prefix}({ast.unparse(function.args)})"


def _parameters(arguments: ast.arguments) -> list[_Parameter]:
    positional = [("/", argument) for argument in arguments.posonlyargs]
    positional += [("", argument) for argument in arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults = [None] * missing + list(arguments.defaults)
    found = [
        _Parameter(kind, argument, default)
        for (kind, argument), default in zip(positional, defaults, strict=True)
    ]
    if arguments.vararg:
        found.append(_Parameter("*", arguments.vararg, None))
    found += [
        _Parameter("keyword", argument, default)
        for argument, default in zip(
            arguments.kwonlyargs, arguments.kw_defaults, strict=True
        )
    ]
    if arguments.kwarg:
        found.append(_Parameter("**", arguments.kwarg, None))
    return found


def _parameter_nodes(function: SgNode) -> dict[str, SgNode]:
    parameters = function.field("parameters")
    assert parameters is not None
    nodes = {}
    for node in parameters.children():
        label = node if node.kind() == "identifier" else node.find(kind="identifier")
        if label is not None:
            nodes[label.text()] = node
    return nodes


def _changes(annotation: ast.expr | None, theirs: ast.arg) -> bool:
    return annotation is not None and _dump(annotation) != _dump(theirs.annotation)


def _annotation_edit(node: SgNode, delta: Delta, argument: ast.arg, name: str) -> Edit:
    assert argument.annotation is not None
    new = delta.expression(argument.annotation)
    if node.field("type") is not None:
        return replacement(node.field("type"), new, name)
    label = node if node.kind() == "identifier" else node.find(kind="identifier")
    assert label is not None
    return addition(span(label)[1], f": {new}", name)


def _return_edit(function: SgNode, annotation: str, name: str) -> Edit:
    node = function.field("return_type")
    if node is not None:
        return replacement(node, annotation, name)
    parameters = function.field("parameters")
    assert parameters is not None
    return addition(span(parameters)[1], f" -> {annotation}", name)


def _added_parameters(
    function: SgNode,
    nodes: dict[str, SgNode],
    ours: list[_Parameter],
    delta: Delta,
    name: str,
) -> list[Edit]:
    """One addition for each parameter of ours, after the one that it follows."""
    edits = []
    anchor: SgNode | None = None
    previous: _Parameter | None = None
    for parameter in ours:
        if parameter.name in nodes:
            anchor = nodes[parameter.name]
        elif anchor is not None and previous is not None:
            text = delta.between(_last(previous), _last(parameter))
            edits.append(addition(span(anchor)[1], text, name))
        else:
            raise FaultError(
                f"added parameter {parameter.name!r} comes first; put it after one of "
                "upstream's",
                name,
            )
        previous = parameter
    return edits


def _last(parameter: _Parameter) -> ast.expr | ast.arg:
    return parameter.default or parameter.argument


def _dump(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)
