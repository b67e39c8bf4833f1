# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The header of a function whose body is made of edit blocks."""

import ast
from dataclasses import dataclass

from ast_grep_py import SgNode

from tools.series.delta import Delta, Function
from tools.series.edits import Edit, FaultError, addition, replacement
from tools.series.upstream import span

_VARIADIC = ("*", "**")
_SEPARATORS = {"": "/", "keyword": "*"}
"""What stands before parameters of a kind, unless one of another kind does."""


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
    upstream = _parsed(function)
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


def _parsed(function: SgNode) -> Function:
    column = function.range().start.column
    header = "if True:\n" + " " * column if column else ""
    tree = ast.parse(header + function.text())
    return next(node for node in ast.walk(tree) if isinstance(node, Function))


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
    """The nodes of a function's parameters, and of the separators ``/`` and ``*``."""
    nodes = {}
    for node in _field(function, "parameters").children():
        label = node if node.kind() == "identifier" else node.find(kind="identifier")
        if label is not None and node.kind() != "comment":
            nodes[label.text()] = node
        elif node.kind().endswith("_separator"):
            nodes[node.text()] = node
    return nodes


def _field(node: SgNode, name: str) -> SgNode:
    found = node.field(name)
    assert found is not None, name
    return found


def _changes(annotation: ast.expr | None, theirs: ast.arg) -> bool:
    return annotation is not None and _dump(annotation) != _dump(theirs.annotation)


def _annotation_edit(node: SgNode, delta: Delta, argument: ast.arg, name: str) -> Edit:
    assert argument.annotation is not None
    new = delta.expression(argument.annotation)
    old = node.field("type")
    if old is not None:
        return replacement(old, new, name)
    label = node if node.kind() == "identifier" else node.find(kind="identifier")
    assert label is not None
    return addition(span(label)[1], f": {new}", name)


def _return_edit(function: SgNode, annotation: str, name: str) -> Edit:
    node = function.field("return_type")
    if node is not None:
        return replacement(node, annotation, name)
    end = span(_field(function, "parameters"))[1]
    return addition(end, f" -> {annotation}", name)


def _added_parameters(
    function: SgNode,
    nodes: dict[str, SgNode],
    ours: list[_Parameter],
    delta: Delta,
    name: str,
) -> list[Edit]:
    """One addition for each parameter of ours, after the one that it follows."""
    edits: list[Edit] = []
    anchor = opening = _field(function, "parameters").children()[0]
    starred = False
    for parameter in ours:
        if parameter.name in nodes:
            anchor = nodes[parameter.name]
        else:
            separator = nodes.get(_SEPARATORS.get(parameter.kind, ""))
            if separator is not None and span(separator) > span(anchor):
                anchor = separator
            text = _source(parameter, delta)
            if parameter.kind == "keyword" and not (starred or separator):
                text = f"*, {text}"
            if anchor is opening and nodes:
                text = f"{text}, "
            elif anchor is not opening or edits:
                text = f", {text}"
            edits.append(addition(span(anchor)[1], text, name))
        starred |= parameter.kind in ("*", "keyword")
    return edits


def _source(parameter: _Parameter, delta: Delta) -> str:
    stars = parameter.kind if parameter.kind in _VARIADIC else ""
    source = stars + delta.expression(parameter.argument)
    if parameter.default is None:
        return source
    return f"{source} = {delta.expression(parameter.default)}"


def _dump(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)
