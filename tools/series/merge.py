# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The merge of one delta with one upstream file, by qualified name."""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tools.series import upstream as up
from tools.series.assignments import (
    extend_literal,
    remove_assignment,
    replace_assignment,
)
from tools.series.blocks import FunctionEditor, check_blocks
from tools.series.delta import (
    Definition,
    Delta,
    Function,
    assigned_name,
    docstring_node,
    is_type_checking,
)
from tools.series.docstrings import docstring_edit
from tools.series.edits import (
    Edit,
    FaultError,
    added_lines,
    addition,
    apply_edits,
    fill_emptied,
    line_end,
    removal,
)
from tools.series.imports import import_edits, type_checking_edits
from tools.series.lookup import OVERLOAD, Scope, refuse_other_header, role_of
from tools.series.markers import (
    import_faults,
    is_edit_block,
    is_marker_import,
    marker_uses,
    removed_name,
)
from tools.series.places import after_fields, end_of, gap
from tools.series.problems import Problem
from tools.series.signature import signature_edits


def merge(path: str, upstream: str, delta: str) -> tuple[str, list[Problem]]:
    """Merges a delta with the upstream file of the same path.

    Args:
        path: The path, for messages.
        upstream: Upstream's source.
        delta: The delta's source.

    Returns:
        The merged source, not yet formatted, and every fault that was found. The
        source is of use only if there is no fault.
    """
    newline = "\r\n" if "\r\n" in upstream else "\n"
    upstream, delta = (text.replace("\r\n", "\n") for text in (upstream, delta))
    try:
        parsed = Delta(delta)
    except SyntaxError as error:
        message = f"line {error.lineno} is not Python: {error.msg}"
        return upstream, [Problem(path, message)]
    root = up.parse(upstream)
    unknown = root.find(kind="ERROR")
    if unknown is not None:
        line = unknown.range().start.line + 1
        message = f"upstream's line {line} is beyond ast-grep: no delta can change it"
        return upstream, [Problem(path, message)]
    merger = _Merger(upstream, parsed)
    merger.merge_body(parsed.tree.body, Scope(root))
    edits = [*merger.edits, *fill_emptied(root, upstream, merger.edits)]
    merged, faults = apply_edits(upstream, edits)
    faults = [*import_faults(parsed.tree), *merger.faults, *faults]
    return merged.replace("\n", newline), [
        Problem(path, fault.message, fault.definition, fault.pattern)
        for fault in faults or _syntax_faults(merged)
    ]


def _syntax_faults(merged: str) -> list[FaultError]:
    try:
        compile(merged, "merged", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = merged.split("\n")[(error.lineno or 1) - 1].strip()
        return [FaultError(f"the merged file is not Python: {error.msg}, at `{line}`")]
    return []


class _Merger:
    """Collects the edits of one upstream file, and the faults on the way."""

    def __init__(self, text: str, delta: Delta) -> None:
        self.edits: list[Edit] = []
        self.faults: list[FaultError] = []
        self._text = text
        self._delta = delta
        self._opened: set[tuple[int, int]] = set()

    def merge_body(self, body: list[ast.stmt], scope: Scope) -> None:
        """Merges the statements of a module or class of the delta."""
        docstring = docstring_node(body)
        if docstring is not None:
            with self._collected():
                self._docstring(docstring, scope)
            body = body[1:]
        fields_first = True
        for group in _grouped(self._without_repeats(body, scope)):
            fields_first = fields_first and not isinstance(group[0], Definition)
            with self._collected():
                self._statement(group, scope, fields_first)

    @contextmanager
    def _collected(self) -> Iterator[None]:
        """Goes on after a fault, and keeps it."""
        try:
            yield
        except FaultError as fault:
            self.faults.append(fault)

    def _statement(
        self, group: list[ast.stmt], scope: Scope, fields_first: bool
    ) -> None:
        statement = group[0]
        match statement:
            case ast.Import() | ast.ImportFrom() if not scope.name:
                if not is_marker_import(statement):
                    self.edits += import_edits(
                        statement, self._delta, scope.node, self._text
                    )
            case ast.If() if not scope.name and is_type_checking(statement):
                self.edits += type_checking_edits(
                    statement.body, self._delta, scope.node, self._text
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(statement, scope)
            case ast.AugAssign() if assigned_name(statement):
                self._extension(statement, scope)
            case ast.Assign() | ast.AnnAssign() if assigned_name(statement):
                self._assignment(group, scope, fields_first)
            case ast.Pass():
                pass  # the body of a class in which nothing changes
            case _ if removed_name(statement):
                self._removal(statement, scope)
            case _:
                raise _misplaced(statement, scope.name)

    def _without_repeats(
        self, body: list[ast.stmt], scope: Scope
    ) -> Iterator[ast.stmt]:
        """The statements; a fault for each that binds a name a second time."""
        seen = set()
        for statement in body:
            role = ""
            label = assigned_name(statement)
            if isinstance(statement, Definition):
                label = statement.name
                role = role_of(map(ast.unparse, statement.decorator_list))
            if label is None or (label, role) not in seen or role == OVERLOAD:
                seen.add((label, role))
                yield statement
                continue
            message = (
                f"line {statement.lineno} defines it a second time; put all that "
                "changes into one definition"
            )
            self.faults.append(FaultError(message, scope.qualified(label)))

    def _docstring(self, docstring: ast.Expr, scope: Scope) -> None:
        if scope.node.kind() != "module" and up.is_one_line(up.body(scope.node)):
            self._make_room(scope)
        self.edits.append(
            docstring_edit(docstring, self._delta, scope.node, self._text, scope.name)
        )

    def _definition(self, statement: Definition, scope: Scope) -> None:
        name = scope.qualified(statement.name)
        found = scope.definition(statement)
        if found is None:
            self._add_definition(statement, scope)
        elif isinstance(statement, ast.ClassDef):
            refuse_other_header(statement, found)
            self.merge_body(statement.body, found)
        elif found.node.kind() == "class_definition":
            raise FaultError("is a class upstream, and a function in the delta", name)
        elif _is_edit(statement):
            self._edit_function(statement, found)
        else:
            _refuse_markers(statement, name)
            self._replace_function(statement, found)

    def _add_definition(self, statement: Definition, scope: Scope) -> None:
        name = scope.qualified(statement.name)
        if any(marker_uses(statement)):
            raise scope.not_found(statement.name)
        scope.refuse_bound(statement.name, statement)
        self._make_room(scope)
        column = up.column(up.body(scope.node))
        text = self._delta.statements([statement], column)
        place = end_of(scope.node, self._text)
        lines = added_lines(place, text, name, column)
        above = ("\n" if column else "\n\n") if place else ""
        self.edits.append(addition(place, above + lines.text, name, column))

    def _replace_function(self, statement: Function, function: Scope) -> None:
        target = up.decorated(function.node)
        column = target.range().start.column
        text = self._delta.statements([statement], column, comments=False)
        start, end = up.span(target)
        claim = start, line_end(self._text, end)
        self.edits.append(Edit(*claim, text, claim, function.name))

    def _edit_function(self, statement: Function, function: Scope) -> None:
        name = function.name
        refuse_other_header(statement, function)
        blocks = check_blocks(statement, name)
        if blocks and up.is_one_line(up.body(function.node)):
            message = "is on one line upstream; write the whole function anew"
            raise FaultError(message, name)
        with self._collected():
            self.edits += signature_edits(function.node, statement, self._delta, name)
        docstring = docstring_node(statement.body)
        if docstring is not None:
            self._docstring(docstring, function)
        editor = FunctionEditor(self._text, function.node, self._delta, name)
        for block in blocks:
            with self._collected():
                for inner in block.body:
                    _refuse_markers(inner, name)
                self.edits.append(editor.edit(block))

    def _assignment(
        self, group: list[ast.stmt], scope: Scope, fields_first: bool
    ) -> None:
        label = assigned_name(group[0]) or ""
        name = scope.qualified(label)
        _refuse_markers(group[0], name)
        found = scope.assignment(label)
        if found is not None:
            self.edits.append(
                replace_assignment(group, self._delta, found, self._text, name)
            )
            return
        scope.refuse_bound(label)
        self._make_room(scope)
        column = up.column(up.body(scope.node))
        text = self._delta.statements(group, column)
        place = end_of(scope.node, self._text)
        if fields_first:
            place = after_fields(scope.node, self._text)
            text = gap(scope.node, self._text, place) + text
        self.edits.append(added_lines(place, text, name, column))

    def _extension(self, statement: ast.AugAssign, scope: Scope) -> None:
        label = assigned_name(statement) or ""
        found = scope.assignment(label)
        if found is None:
            raise scope.not_found(label)
        name = scope.qualified(label)
        self.edits.append(extend_literal(statement, self._delta, found, name))

    def _removal(self, statement: ast.stmt, scope: Scope) -> None:
        label = removed_name(statement) or ""
        name = scope.qualified(label)
        definitions = up.definitions(scope.node, label)
        assignments = up.assignments(scope.node, label)
        if not definitions and not assignments:
            raise scope.not_found(label)
        for node in map(up.decorated, definitions):
            self.edits.append(removal(self._text, node, name))
        for node in assignments:
            self.edits += remove_assignment(node, self._text, name)

    def _make_room(self, scope: Scope) -> None:
        """Takes away the ``pass`` or ``...`` of a body that gets something else."""
        if scope.node.kind() == "module" or up.span(scope.node) in self._opened:
            return
        self._opened.add(up.span(scope.node))
        block, filler = up.body(scope.node), up.filler(scope.node)
        if filler is not None and up.is_one_line(block):
            start, end = up.header_end(block), up.span(filler)[1]
            self.edits.append(Edit(start, end, "", up.span(filler), scope.name))
        elif filler is not None:
            self.edits.append(removal(self._text, filler, scope.name))


def _grouped(body: Iterable[ast.stmt]) -> list[list[ast.stmt]]:
    """The statements, each assignment together with the docstring below it."""
    groups: list[list[ast.stmt]] = []
    for statement in body:
        if (
            docstring_node([statement])
            and groups
            and len(groups[-1]) == 1
            and isinstance(groups[-1][0], ast.Assign | ast.AnnAssign)
        ):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


def _misplaced(statement: ast.stmt, name: str) -> FaultError:
    if is_edit_block(statement):
        return FaultError(
            f"line {statement.lineno} holds a marker outside a definition; edit blocks "
            "belong into the body of a function",
            name,
        )
    return FaultError(
        f"line {statement.lineno} is `{ast.unparse(statement)[:60]}`; a delta holds "
        "imports, definitions, assignments to one name, and removed()",
        name,
    )


def _is_edit(function: Function) -> bool:
    """Whether upstream's body stays: edit blocks, or nothing but a docstring."""
    return any(map(is_edit_block, function.body)) or (
        len(function.body) == 1 and docstring_node(function.body) is not None
    )


def _refuse_markers(node: ast.AST, name: str) -> None:
    for line, marker in marker_uses(node):
        raise FaultError(
            f"line {line} holds the marker {marker!r} inside another statement; edit "
            "blocks stand directly in the body of a function, removed() in a module or "
            "class",
            name,
        )
