# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Edit blocks: statements of one upstream function, found by pattern."""

import ast
import textwrap
from typing import Any

from ast_grep_py import SgNode

from tools.series.delta import Delta, Function, docstring_node, is_edit_block
from tools.series.edits import (
    Edit,
    FaultError,
    line_end,
    line_start,
    removal,
)
from tools.series.upstream import body, enclosing_statement, is_whole_statement, span

_KEYWORDS = ("return", "pass", "break", "continue", "raise")
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
        if marker == "replacing" and not is_whole_statement(match):
            return self._replace_expression(match, block, pattern)
        statement = match if match.kind() == "comment" else enclosing_statement(match)
        if marker == "replacing":
            return self._replace_statement(statement, block, pattern)
        return self._insert(statement, block, pattern, after=marker == "after")

    def _marker(self, block: ast.With) -> tuple[str, str, dict[str, str]]:
        """The name, pattern and relations of a block's marker."""
        match block.items:
            case [
                ast.withitem(
                    context_expr=ast.Call(
                        func=ast.Name(marker),
                        args=[ast.Constant(str() as pattern)],
                        keywords=keywords,
                    ),
                    optional_vars=None,
                )
            ] if all(_is_relation(keyword) for keyword in keywords):
                relations = {
                    keyword.arg or "": ast.literal_eval(keyword.value)
                    for keyword in keywords
                }
                return marker, pattern, relations
        raise self._fault(
            f"line {block.lineno} holds a malformed marker; expected one marker with "
            'one string, as in `with replacing("del layer.weight"):`, and perhaps '
            "inside= or follows= with another"
        )

    def _find(self, pattern: str, relations: dict[str, str]) -> SgNode:
        rule: dict[str, Any] = {
            name: {"pattern": relations[name]} for name in relations
        }
        if "inside" in rule:
            rule["inside"]["stopBy"] = "end"
        if pattern in _KEYWORDS:
            rule |= {"kind": f"{pattern}_statement", "regex": f"^{pattern}$"}
        else:
            rule["pattern"] = pattern
        try:
            found = self._function.find_all({"rule": rule})
        except RuntimeError as error:
            reason = str(error).partition("Stack backtrace")[0].strip().splitlines()[-1]
            raise self._fault(
                f"is not an ast-grep pattern ({reason.strip()})", pattern
            ) from None
        header_end = self._header_end()
        matches = {
            span(node): node
            for node in found
            if node.is_named() and span(node)[0] >= header_end
        }
        if len(matches) == 1:
            return next(iter(matches.values()))
        places = ", ".join(
            str(node.range().start.line + 1) for node in matches.values()
        )
        if matches:
            raise self._fault(
                f"matched {len(matches)} times, on upstream's lines {places}; expected "
                "exactly once: make the pattern longer, or add inside= or follows=",
                pattern,
            )
        raise self._fault(
            "matched 0 times, expected exactly once: correct the pattern, or drop the "
            "edit if upstream already has the change",
            pattern,
        )

    def _header_end(self) -> int:
        """Offset of the end of the function's signature."""
        end = self._function.field("return_type") or self._function.field("parameters")
        assert end is not None
        return span(end)[1]

    def _replace_statement(
        self, statement: SgNode, block: ast.With, pattern: str
    ) -> Edit:
        start, end = span(statement)
        text = self._delta.block(block, statement.range().start.column)
        if not text and not self._is_alone(statement):
            return removal(self._text, statement, self._name, pattern)
        return Edit(
            start,
            line_end(self._text, end),
            text or "pass",
            (start, end),
            self._name,
            pattern,
        )

    def _is_alone(self, statement: SgNode) -> bool:
        parent = statement.parent()
        assert parent is not None
        siblings = [
            child
            for child in parent.children()
            if child.is_named() and child.kind() != "comment"
        ]
        return statement.kind() != "comment" and len(siblings) == 1

    def _replace_expression(self, match: SgNode, block: ast.With, pattern: str) -> Edit:
        statement = enclosing_statement(match)
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
        start, end = span(match)
        if not self._means_the_same(statement, (start, end), new, f"({new})"):
            new = f"({new})"
        claim = (start, end) if _is_compound(statement) else span(statement)
        return Edit(start, end, new, claim, self._name, pattern)

    def _means_the_same(
        self, statement: SgNode, place: tuple[int, int], first: str, second: str
    ) -> bool:
        """Whether two texts in one place of a statement give the same syntax tree."""
        start = line_start(self._text, span(statement)[0])
        end = span(statement)[1]
        trees = []
        for new in (first, second):
            text = self._text[start : place[0]] + new + self._text[place[1] : end]
            try:
                trees.append(ast.dump(ast.parse(textwrap.dedent(text))))
            except SyntaxError:
                return False
        return trees[0] == trees[1]

    def _insert(
        self, statement: SgNode, block: ast.With, pattern: str, *, after: bool
    ) -> Edit:
        column = statement.range().start.column
        text = self._delta.block(block, column)
        if not text:
            raise self._fault("the block is empty: there is nothing to insert", pattern)
        start, end = span(statement)
        claim = (start, span(body_of(statement))[0]) if _is_compound(statement) else (
            start, end,
        )  # fmt: skip
        indented = " " * column + text
        if after:
            place = line_end(self._text, end)
            return Edit(place, place, f"\n{indented}", claim, self._name, pattern)
        place = self._above_comments(line_start(self._text, start), column)
        return Edit(place, place, f"{indented}\n", claim, self._name, pattern)

    def _above_comments(self, place: int, column: int) -> int:
        """Start of the comment lines that stand right above a line."""
        prefix = " " * column + "#"
        while place > 0:
            above = line_start(self._text, place - 1)
            if not self._text.startswith(prefix, above):
                return place
            place = above
        return place

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


def body_of(statement: SgNode) -> SgNode:
    """The first block inside a compound statement."""
    if statement.kind() == "decorated_definition":
        inner = statement.field("definition")
        assert inner is not None
        return body(inner)
    block = statement.find(kind="block")
    assert block is not None
    return block


def _is_relation(keyword: ast.keyword) -> bool:
    return keyword.arg in ("inside", "follows") and isinstance(
        keyword.value, ast.Constant
    )


def _is_compound(statement: SgNode) -> bool:
    return statement.find(kind="block") is not None


def _first_line(node: SgNode) -> str:
    return node.text().splitlines()[0]
