# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks: statements of one upstream function, found by pattern."""

import ast

from ast_grep_py import SgNode

from tools.series import upstream as up
from tools.series.delta import Delta, Function, docstring_node
from tools.series.edits import (
    Edit,
    FaultError,
    line_end,
    line_start,
    removal,
)
from tools.series.markers import is_edit_block, marker_name

_KEYWORDS = ("return", "pass", "break", "continue", "raise", "yield")
"""Statements of one word: as a pattern, ast-grep would take them for a token."""


class FunctionEditor:
    """Turns the edit blocks of a delta's function into edits of upstream's.

    Args:
        text: The whole upstream file.
        function: Upstream's function.
        delta: The delta that holds the blocks.
        name: Qualified name of the function.
    """

    def __init__(self, text: str, function: SgNode, delta: Delta, name: str) -> None:
        self._text = text
        self._function = function
        self._delta = delta
        self._name = name

    def edit(self, block: ast.With) -> Edit:
        """The edit that one block asks for.

        Raises:
            FaultError: The marker is malformed, the pattern does not match exactly
                once, or the block does not fit what it matched.
        """
        marker, pattern, relations = self._marker(block)
        match = self._find(pattern, relations)
        statement = up.enclosing_statement(match)
        if marker != "replacing":
            return self._insert(statement, block, pattern, after=marker == "after")
        if self._ends_line_of_code(match):
            return self._replace_remark(match, block, pattern)
        if up.is_whole_statement(match):
            return self._replace_statement(statement, block, pattern)
        return self._replace_expression(match, block, pattern)

    def _marker(self, block: ast.With) -> tuple[str, str, dict[str, str]]:
        """The name, pattern and relations of a block's marker."""
        match block.items:
            case [
                ast.withitem(
                    context_expr=ast.Call(
                        args=[ast.Constant(str() as pattern)], keywords=keywords
                    ) as call,
                    optional_vars=None,
                )
            ] if (
                all(map(_is_relation, keywords))
                and call.end_lineno != block.body[0].lineno
            ):
                marker = marker_name(call)
                assert marker is not None
                relations = {
                    keyword.arg or "": ast.literal_eval(keyword.value)
                    for keyword in keywords
                }
                return marker, pattern, relations
        raise self._fault(
            f"line {block.lineno} holds a malformed marker; expected one marker with "
            'one string, as in `with replacing("del layer.weight"):`, and perhaps '
            "inside=, outside= or follows= with another, and the block on lines of its "
            "own"
        )

    def _find(self, pattern: str, relations: dict[str, str]) -> SgNode:
        found = self._matches(pattern)
        for relation, other in relations.items():
            around = self._matches(other, is_clause=other.startswith("elif "))
            related = _RELATIONS[relation]
            found = [node for node in found if related(node, around)]
        if len(found) == 1:
            return found[0]
        where = "".join(f", {name}={text!r}" for name, text in relations.items())
        if found:
            lines = ", ".join(str(node.range().start.line + 1) for node in found)
            raise self._fault(
                f"matched {len(found)} times{where}, on upstream's lines {lines}; "
                "expected exactly once: make the pattern longer, or add inside=, "
                "outside= or follows=",
                pattern,
            )
        raise self._fault(
            f"matched 0 times{where}, expected exactly once: correct the pattern, or "
            "drop the edit if upstream already has the change",
            pattern,
        )

    def _matches(self, pattern: str, is_clause: bool = False) -> list[SgNode]:
        """What a pattern matches in the function's body; no place twice."""
        try:
            if is_clause:
                context = f"if _: pass\n{pattern}"
                found = self._function.find_all(  # type: ignore[call-overload]
                    pattern={"context": context, "selector": "elif_clause"}
                )
            elif pattern in _KEYWORDS:
                kind = pattern if pattern == "yield" else f"{pattern}_statement"
                found = self._function.find_all(kind=kind, regex=f"^{pattern}$")
            else:
                found = self._function.find_all(pattern=pattern)
        except RuntimeError as error:
            cause = str(error).partition("2: ")[2].partition(". ")[0]
            raise self._fault(
                f"is not an ast-grep pattern: {cause}; write one statement or "
                "expression",
                pattern,
            ) from None
        start = up.header_end(up.body(self._function))
        matches = {
            up.span(node): node
            for node in found
            if node.is_named() and up.span(node)[0] >= start
        }
        return list(matches.values())

    def _replace_statement(
        self, statement: SgNode, block: ast.With, pattern: str
    ) -> Edit:
        start, end = up.span(statement)
        text = self._delta.block(block, statement.range().start.column)
        if not text:
            return removal(self._text, statement, self._name, pattern)
        claim = start, line_end(self._text, end)
        return Edit(*claim, text, claim, self._name, pattern)

    def _replace_remark(self, comment: SgNode, block: ast.With, pattern: str) -> Edit:
        """Replaces a comment at the end of a line of code by another, or by none."""
        start, end = claim = up.span(comment)
        text = self._delta.block(block, 0)
        if text and (not text.startswith("#") or "\n" in text):
            raise self._fault(
                "matches a comment at the end of a line; expected a block of one "
                "comment and `pass`, or match the statement",
                pattern,
            )
        if not text:
            start = len(self._text[:start].rstrip())
        return Edit(start, end, text, claim, self._name, pattern)

    def _replace_expression(self, match: SgNode, block: ast.With, pattern: str) -> Edit:
        statement = up.enclosing_statement(match)
        match block.body:
            case [ast.Expr(value=expression)]:
                new = self._delta.expression(expression)
            case _:
                raise self._fault(
                    f"matches an expression inside `{_first_line(statement)}`, but the "
                    "block is not one expression: match the whole statement, or give "
                    "one expression",
                    pattern,
                )
        start, end = up.span(match)
        if not self._means_the_same(statement, (start, end), new, f"({new})"):
            new = f"({new})"
        return Edit(start, end, new, (start, end), self._name, pattern)

    def _means_the_same(
        self, statement: SgNode, place: tuple[int, int], first: str, second: str
    ) -> bool:
        """Whether two texts in one place of a statement give the same syntax tree."""
        start = line_start(self._text, up.span(statement)[0])
        end = up.span(statement)[1]
        trees = []
        for new in (first, second):
            text = self._text[start : place[0]] + new + self._text[place[1] : end]
            try:
                trees.append(ast.dump(ast.parse(f"if True:\n{text}")))
            except SyntaxError:
                return False
        return trees[0] == trees[1]

    def _insert(
        self, statement: SgNode, block: ast.With, pattern: str, *, after: bool
    ) -> Edit:
        if self._ends_line_of_code(statement):
            raise self._fault(
                "matches a comment at the end of a line; match the statement", pattern
            )
        column = statement.range().start.column
        text = self._delta.block(block, column)
        if not text:
            raise self._fault("the block is empty: there is nothing to insert", pattern)
        start, end = claim = up.span(statement)
        if _is_compound(statement):
            claim = start, up.span(_first_block(statement))[0]
        lines = f"\n{' ' * column}{text}"
        if after:
            place, depth = line_end(self._text, end), column
        else:
            place, depth = self._above(statement), column - 1
        return Edit(place, place, lines, claim, self._name, pattern, depth)

    def _above(self, statement: SgNode) -> int:
        """End of the line above a statement and the comments right above it."""
        first = statement.range().start.line
        place = line_start(self._text, up.span(statement)[0]) - 1
        block = statement.parent()
        assert block is not None
        for sibling in (*statement.prev_all(), *block.prev_all()):
            if (
                sibling.kind() != "comment"
                or sibling.range().start.line != first - 1
                or self._ends_line_of_code(sibling)
            ):
                break
            first -= 1
            place = line_start(self._text, up.span(sibling)[0]) - 1
        return place

    def _ends_line_of_code(self, node: SgNode) -> bool:
        """Whether a node is a comment with code before it on its line."""
        start = up.span(node)[0]
        before = self._text[line_start(self._text, start) : start]
        return node.kind() == "comment" and bool(before.strip())

    def _fault(self, message: str, pattern: str = "") -> FaultError:
        return FaultError(message, self._name, pattern)


def check_blocks(function: Function, name: str) -> list[ast.With]:
    """The edit blocks of a function that holds nothing else but a docstring.

    Raises:
        FaultError: Ordinary statements stand between the blocks.
    """
    docstring = docstring_node(function.body)
    blocks = []
    for statement in function.body:
        if isinstance(statement, ast.With) and is_edit_block(statement):
            blocks.append(statement)
        elif statement is not docstring:
            raise FaultError(
                f"line {statement.lineno} is an ordinary statement among edit blocks; "
                "put it into a block, or write the whole function anew",
                name,
            )
    return blocks


def _is_relation(keyword: ast.keyword) -> bool:
    match keyword:
        case ast.keyword(str() as relation, ast.Constant(str())):
            return relation in _RELATIONS
    return False


def _is_inside(node: SgNode, others: list[SgNode]) -> bool:
    """Whether one of the others is around the node."""
    inner = up.span(node)
    return any(
        outer[0] <= inner[0] and inner[1] <= outer[1] and outer != inner
        for outer in map(up.span, others)
    )


def _is_outside(node: SgNode, others: list[SgNode]) -> bool:
    """Whether none of the others is around the node."""
    return not _is_inside(node, others)


def _is_after(node: SgNode, others: list[SgNode]) -> bool:
    """Whether one of the others is the statement just before the node's."""
    for sibling in up.enclosing_statement(node).prev_all():
        if sibling.kind() != "comment":
            places = up.span(sibling), up.span(up.undecorated(sibling))
            return any(up.span(other) in places for other in others)
    return False


_RELATIONS = {"inside": _is_inside, "outside": _is_outside, "follows": _is_after}
"""Keywords of the markers, and the test that each stands for."""


def _first_block(statement: SgNode) -> SgNode:
    block = statement.find(kind="block")
    assert block is not None
    return block


def _is_compound(statement: SgNode) -> bool:
    return statement.find(kind="block") is not None


def _first_line(node: SgNode) -> str:
    return node.text().splitlines()[0]
