# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The merge of one delta with one upstream file, by qualified name."""

import ast
import difflib
import inspect
import itertools
from collections.abc import Iterable, Sequence

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.blocks import FunctionEditor, check_blocks
from tools.series.delta import (
    Definition,
    Delta,
    Function,
    assigned_name,
    docstring_node,
    is_edit_block,
    is_type_checking,
    marker_calls,
    removed_name,
)
from tools.series.edits import (
    Edit,
    FaultError,
    addition,
    apply_edits,
    line_end,
    line_start,
    removal,
    replacement,
)
from tools.series.imports import after_imports, import_edits
from tools.series.problems import Problem
from tools.series.signature import signature_edits

_ROLES = (".setter", ".deleter", ".getter", "overload")


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
    try:
        parsed = Delta(delta)
    except SyntaxError as error:
        message = f"line {error.lineno} is not Python: {error.msg}"
        return upstream, [Problem(path, message)]
    merger = _Merger(upstream, parsed)
    merger.scope(parsed.tree.body, up.parse(upstream), "")
    merged, faults = apply_edits(upstream, merger.edits)
    faults = merger.faults + faults
    if not faults:
        try:
            ast.parse(merged)
        except SyntaxError as error:
            reason = f"the merged file is not Python: {error.msg}, at `{error.text}`"
            faults = [FaultError(reason)]
    return merged, [
        Problem(path, fault.message, fault.definition, fault.pattern)
        for fault in faults
    ]


class _Merger:
    """Collects the edits of one upstream file, and the faults on the way."""

    def __init__(self, text: str, delta: Delta) -> None:
        self.edits: list[Edit] = []
        self.faults: list[FaultError] = []
        self._text = text
        self._delta = delta

    def scope(self, body: list[ast.stmt], node: SgNode, name: str) -> None:
        """Merges the statements of a module or class of the delta."""
        self._refuse_duplicates(body, name)
        docstring = docstring_node(body)
        if docstring is not None:
            self._docstring(docstring, node, name)
            body = body[1:]
        fields_first = True
        for position, statement in enumerate(body):
            following = body[position + 1 : position + 2]
            fields_first = fields_first and not isinstance(statement, Definition)
            try:
                self._statement(statement, following, node, name, fields_first)
            except FaultError as fault:
                self.faults.append(fault)

    def _statement(
        self,
        statement: ast.stmt,
        following: list[ast.stmt],
        node: SgNode,
        name: str,
        fields_first: bool,
    ) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom() if not name:
                self._import(statement, node, type_checking=False)
            case ast.If() if not name and is_type_checking(statement):
                for inner in statement.body:
                    self._import(inner, node, type_checking=True)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(statement, node, name)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if assigned_name(
                statement
            ):
                pair = [statement, *following] if docstring_node(following) else []
                self._assignment(pair or [statement], node, name, fields_first)
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                pass  # the docstring of an assignment; the body of an empty class
            case _ if removed_name(statement):
                self._removal(statement, node, name)
            case _ if is_edit_block(statement):
                raise FaultError(
                    f"line {statement.lineno} holds a marker outside a definition; "
                    "edit blocks belong into the body of a function",
                    name,
                )
            case _:
                raise FaultError(
                    f"line {statement.lineno} is `{ast.unparse(statement)[:60]}`; a "
                    "delta holds imports, definitions, assignments to one name, and "
                    "removed()",
                    name,
                )

    def _refuse_duplicates(self, body: list[ast.stmt], name: str) -> None:
        seen = set()
        for statement in body:
            if not isinstance(statement, Definition):
                continue
            key = statement.name, _role(map(ast.unparse, statement.decorator_list))
            if key in seen:
                self.faults.append(
                    FaultError(
                        f"line {statement.lineno} defines it a second time; put all "
                        "that changes into one definition",
                        _join(name, statement.name),
                    )
                )
            seen.add(key)

    def _import(
        self, statement: ast.stmt, root: SgNode, *, type_checking: bool
    ) -> None:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            raise FaultError(
                f"line {statement.lineno}: only imports may stand under TYPE_CHECKING"
            )
        if isinstance(statement, ast.ImportFrom) and statement.module == "series":
            return
        self.edits += import_edits(statement, root, self._text, type_checking)

    def _docstring(self, docstring: ast.Expr, scope: SgNode, name: str) -> None:
        """Appends a docstring's text to upstream's, as further paragraphs."""
        statements = [child for child in up.body(scope).children() if child.is_named()]
        first = next((node for node in statements if node.kind() != "comment"), None)
        assert isinstance(docstring.value, ast.Constant)
        indent = "\n" + " " * _column(scope)
        ours = indent.join(inspect.cleandoc(docstring.value.value).splitlines())
        if first is None or not up.is_docstring(first):
            place = up.span(first or scope)[0]
            text = f'"""{ours}{indent}"""{indent}'
            self.edits.append(addition(place, text, name))
            return
        start, end = up.span(first)
        theirs = first.text().removesuffix('"""')
        if theirs == first.text():
            raise FaultError("upstream's docstring has no triple quotes", name)
        text = f'{theirs.rstrip()}\n{indent}{ours}{indent}"""'
        self.edits.append(Edit(start, end, text, (start, end), name))

    def _definition(self, statement: Definition, scope: SgNode, parent: str) -> None:
        name = _join(parent, statement.name)
        found = _same_role(up.definitions(scope, statement.name), statement)
        if len(found) > 1:
            raise FaultError(f"upstream defines it {len(found)} times", name)
        if not found:
            self._add_definition(statement, scope, name)
        elif isinstance(statement, ast.ClassDef):
            self._class(statement, found[0], name)
        elif found[0].kind() == "class_definition":
            raise FaultError("is a class upstream, and a function in the delta", name)
        elif any(map(is_edit_block, statement.body)):
            self._edit_function(statement, found[0], name)
        else:
            self._refuse_markers(statement, name)
            target = up.decorated(found[0])
            text = self._delta.statements([statement], target.range().start.column)
            text = text[text.index(_opening(statement)) :]
            self.edits.append(replacement(target, text, name))

    def _add_definition(self, statement: Definition, scope: SgNode, name: str) -> None:
        edits = any(True for _ in marker_calls(statement)) or any(
            isinstance(child, ast.stmt) and removed_name(child)
            for child in ast.walk(statement)
        )
        if edits:
            raise self._not_found(statement.name, scope, name)
        column = _column(scope)
        text = self._delta.statements([statement], column)
        gap = "\n\n" if column else "\n\n\n"
        place = self._end_of(scope)
        self.edits.append(addition(place, f"{gap}{' ' * column}{text}\n", name))

    def _end_of(self, scope: SgNode) -> int:
        """Where a new definition goes: the end, but before a module's main guard."""
        statements = [child for child in up.body(scope).children() if child.is_named()]
        last = statements[-1]
        if scope.kind() == "module" and last.text().startswith("if __name__ =="):
            return line_start(self._text, up.span(last)[0])
        return line_end(self._text, up.span(last)[1])

    def _class(self, statement: ast.ClassDef, found: SgNode, name: str) -> None:
        if found.kind() != "class_definition":
            raise FaultError("is a function upstream, and a class in the delta", name)
        tree = ast.parse(f"class _{_superclasses(found)}: ...").body[0]
        assert isinstance(tree, ast.ClassDef)
        bases = [ast.unparse(base) for base in (*tree.bases, *tree.keywords)]
        ours = [ast.unparse(base) for base in (*statement.bases, *statement.keywords)]
        if ours and ours != bases:
            raise FaultError(
                f"bases ({', '.join(ours)}) differ from upstream's "
                f"({', '.join(bases)}); leave them out",
                name,
            )
        self._refuse_decorators(statement, found, name)
        self.scope(statement.body, found, name)

    def _edit_function(self, statement: Function, found: SgNode, name: str) -> None:
        self._refuse_decorators(statement, found, name)
        self.edits += signature_edits(found, statement, self._delta, name)
        docstring = docstring_node(statement.body)
        if docstring is not None:
            self._docstring(docstring, found, name)
        editor = FunctionEditor(self._text, found, self._delta, name)
        for block in check_blocks(statement, name):
            try:
                for inner in block.body:
                    self._refuse_markers(inner, name)
                self.edits.append(editor.edit(block))
            except FaultError as fault:
                self.faults.append(fault)

    def _refuse_decorators(
        self, statement: Definition, found: SgNode, name: str
    ) -> None:
        theirs = up.decorators(found)
        for decorator in map(ast.unparse, statement.decorator_list):
            if decorator not in [ast.unparse(ast.parse(text)) for text in theirs]:
                raise FaultError(
                    f"decorator @{decorator} is not among upstream's "
                    f"({', '.join(theirs) or 'none'}); leave decorators out, or write "
                    "the whole definition anew",
                    name,
                )

    def _refuse_markers(self, node: ast.AST, name: str) -> None:
        for call in marker_calls(node):
            raise FaultError(
                f"line {call.lineno} holds a marker inside another statement; edit "
                "blocks stand directly in the body of a function",
                name,
            )

    def _assignment(
        self, pair: list[ast.stmt], scope: SgNode, parent: str, fields_first: bool
    ) -> None:
        label = assigned_name(pair[0])
        assert label is not None
        name = _join(parent, label)
        self._refuse_markers(pair[0], name)
        found = up.assignments(scope, label)
        if len(found) > 1:
            raise FaultError(f"upstream assigns it {len(found)} times", name)
        if isinstance(pair[0], ast.AugAssign):
            if not found:
                raise self._not_found(label, scope, name)
            self.edits.append(self._extension(pair[0], found[0], name))
        elif found:
            self._replace_assignment(pair, found[0], name)
        else:
            column = _column(scope)
            text = self._delta.statements(pair, column)
            place = self._after_fields(scope) if fields_first else self._end_of(scope)
            self.edits.append(addition(place, f"\n{' ' * column}{text}", name))

    def _replace_assignment(
        self, pair: Sequence[ast.stmt], found: SgNode, name: str
    ) -> None:
        text = self._delta.statements(pair, found.range().start.column)
        text = text[text.index(name.rpartition(".")[2]) :]
        start, end = up.span(found)
        following = found.next()
        if len(pair) > 1 and following is not None and up.is_docstring(following):
            end = up.span(following)[1]
        self.edits.append(Edit(start, end, text, (start, end), name))

    def _extension(self, statement: ast.AugAssign, found: SgNode, name: str) -> Edit:
        """``NAME += [...]``: more elements for the literal that upstream assigns."""
        inner = found.child(0)
        literal = inner.field("right") if inner is not None else None
        value = statement.value
        if (
            not isinstance(value, ast.List | ast.Tuple | ast.Set)
            or literal is None
            or literal.kind() not in ("list", "tuple", "set")
        ):
            raise FaultError(
                "augmented assignment needs a list, tuple or set literal on both "
                "sides; write the assignment anew",
                name,
            )
        closing = literal.children()[-1]
        previous = closing.prev()
        elements = ", ".join(map(self._delta.expression, value.elts))
        comma = (
            "" if previous is None or previous.kind() in (",", "[", "(", "{") else ","
        )
        place = up.span(previous)[1]
        return Edit(place, place, f"{comma} {elements}", up.span(found), name)

    def _after_fields(self, scope: SgNode) -> int:
        """The end of a module's imports, or of the leading fields of a class."""
        if scope.kind() == "module":
            return after_imports(scope, self._text)
        fields = list(
            itertools.takewhile(
                lambda node: node.kind() in ("expression_statement", "comment"),
                up.body(scope).children(),
            )
        )
        while fields and fields[-1].kind() == "comment":
            fields.pop()
        if not fields:
            return line_start(self._text, up.span(up.body(scope))[0]) - 1
        return line_end(self._text, up.span(fields[-1])[1])

    def _removal(self, statement: ast.stmt, scope: SgNode, parent: str) -> None:
        label = removed_name(statement)
        assert label is not None
        name = _join(parent, label)
        found = [up.decorated(node) for node in up.definitions(scope, label)]
        found += up.assignments(scope, label)
        if not found:
            raise self._not_found(label, scope, name)
        self.edits += [removal(self._text, node, name) for node in found]

    def _not_found(self, label: str, scope: SgNode, name: str) -> FaultError:
        known = [
            str(node.field("name").text())  # type: ignore[union-attr]
            for node in up.definitions(scope)
        ]
        near = difflib.get_close_matches(label, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return FaultError(
            f"is not defined upstream, but the delta edits or removes it{hint}", name
        )


def _same_role(found: list[SgNode], statement: Definition) -> list[SgNode]:
    role = _role(map(ast.unparse, statement.decorator_list))
    return [node for node in found if _role(up.decorators(node)) == role]


def _role(decorators: Iterable[str]) -> str:
    """What tells apart definitions of one name: property setters and overloads."""
    for decorator in decorators:
        for role in _ROLES:
            if decorator.endswith(role):
                return role
    return ""


def _superclasses(node: SgNode) -> str:
    bases = node.field("superclasses")
    return bases.text() if bases is not None else ""


def _column(scope: SgNode) -> int:
    """The column in which the statements of a scope start."""
    if scope.kind() == "module":
        return 0
    first = next(child for child in up.body(scope).children() if child.is_named())
    return first.range().start.column


def _opening(statement: Definition) -> str:
    """How the definition's first line starts: after the comments above it."""
    if statement.decorator_list:
        return "@"
    return {
        ast.FunctionDef: "def ",
        ast.AsyncFunctionDef: "async def ",
        ast.ClassDef: "class ",
    }[type(statement)]


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
