"""The one place where trees become lines of source.

A line is never put together from text: a method is built as `ast`, held against the allow-list, and printed here. What
a name, a comment or a literal holds can then only be that name, comment or literal; `meant.py` reads the finished file
again, and it must be the very trees that were printed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

from onnxgen.code.allowed import Refused
from onnxgen.code.annotations import annotated
from onnxgen.common.names import FileText, is_plain

INDENT = "    "
LINE_LENGTH = 88  # of generated files; a shape comment that would pass it is left out
_REMARK = "_onnxgen_remark"
_Statement = TypeVar("_Statement", bound=ast.stmt)


def remarked(statement: _Statement, dims: str = "", nodes: tuple[FileText, ...] = ()) -> _Statement:
    """A statement with a comment: the dims of what it makes, and the ONNX nodes that it comes from."""
    if dims or nodes:
        setattr(statement, _REMARK, (comment(dims), nodes))
    return statement


def comment(text: str) -> str:
    """Text that may stand in a comment, or in a docstring: one line of printable ASCII without quotes and backslashes.

    Raises:
        Refused: it is other text; whoever shows text of a file passes it through `names.printable`.
    """
    if not is_plain(text):
        raise Refused(f"a comment has {text[:60]!a}")
    return text


def is_quotable(text: str) -> bool:
    """Whether text may stand between double quotes: nothing in it ends the literal or means another character."""
    return text.isprintable() and set(text).isdisjoint('"\\')


def between_quotes(text: str) -> str:
    """Text that a template puts between double quotes.

    Raises:
        Refused: it is not `is_quotable`.
    """
    if not is_quotable(text):
        raise Refused(f"text between quotes has {text[:60]!a}")
    return text


def expression(tree: ast.expr) -> str:
    """An expression's text."""
    return ast.unparse(tree)


def bare(tree: ast.expr) -> str:
    """The same, where a tuple needs no parentheses: behind `return` and `for`, and before `=`."""
    if isinstance(tree, ast.Tuple) and tree.elts:
        return ", ".join(map(expression, tree.elts)) + ("," if len(tree.elts) == 1 else "")
    return expression(tree)


def argument(tree: ast.arg, default: ast.expr | None = None) -> str:
    """A parameter of a function: `x: Tensor = 1`."""
    text = tree.arg + ("" if tree.annotation is None else f": {expression(tree.annotation)}")
    return text + ("" if default is None else f" = {expression(default)}")


def lines(block: Sequence[ast.stmt], level: int = 0) -> list[str]:
    """The lines of a block, with its comments; `level`: how far it is indented."""
    made: list[str] = []
    for statement in block:
        made += _with_remark(statement, _head(statement), level)
        made += lines(getattr(statement, "body", []), level + 1)
        if isinstance(statement, ast.If) and statement.orelse:
            made += [f"{INDENT * level}else:", *lines(statement.orelse, level + 1)]
    return made


def _with_remark(statement: ast.stmt, head: str, level: int) -> list[str]:
    dims, nodes = getattr(statement, _REMARK, ("", ()))
    room = LINE_LENGTH - 2 * len(INDENT) - len(INDENT) * level
    if dims and len(head) + len(dims) + 4 <= room:
        head = f"{head}  # {dims}"
    made = annotated(INDENT * level + head, nodes)
    if nodes and len(made) == 1 and len(made[0]) > LINE_LENGTH:
        raise Refused("the comment behind a line is too long")
    return made


def _head(statement: ast.stmt) -> str:
    """A statement's first line, without the blocks in it."""
    if isinstance(statement, ast.Assign):
        return f"{' = '.join(map(bare, statement.targets))} = {expression(statement.value)}"
    if isinstance(statement, ast.Expr):
        return expression(statement.value)
    if isinstance(statement, ast.Return):
        return "return" if statement.value is None else f"return {bare(statement.value)}"
    if isinstance(statement, (ast.If, ast.While)):
        word = "if" if isinstance(statement, ast.If) else "while"
        return f"{word} {expression(statement.test)}:"
    if isinstance(statement, ast.For):
        return f"for {bare(statement.target)} in {expression(statement.iter)}:"
    if isinstance(statement, ast.With):
        return f"with {', '.join(expression(item.context_expr) for item in statement.items)}:"
    if isinstance(statement, (ast.Pass, ast.Break)):
        return "pass" if isinstance(statement, ast.Pass) else "break"
    raise Refused(f"there is no way to print {type(statement).__name__}")


def function(name: str, arguments: ast.arguments, body: list[ast.stmt], returns: ast.expr) -> ast.FunctionDef:
    """A method."""
    return ast.FunctionDef(name, arguments, body, [], returns)


@cache
def annotation(text: str) -> ast.expr:
    """What onnxgen calls a type, as Python reads it."""
    return ast.parse(text, mode="eval").body


def target(names: Sequence[str], form: str = "") -> ast.expr:
    """What is assigned to: one name, or several; `form`: how they are nested, `"{}, ({}, {})"`."""
    nodes: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    if not form:
        return nodes[0] if len(nodes) == 1 else ast.Tuple(nodes, ast.Store())
    left = iter(nodes)
    made = _filled(_form(form), left)
    if next(left, None) is not None:
        raise Refused(f"{form!a} has no place for {len(names)} names")
    return made


def assigned(tree: ast.expr, value: ast.expr) -> ast.Assign:
    """`tree = value`, of a name, attribute or item that was written down to be read."""
    if isinstance(tree, ast.Name):
        return ast.Assign([ast.Name(tree.id, ast.Store())], value)
    if isinstance(tree, ast.Attribute):
        return ast.Assign([ast.Attribute(tree.value, tree.attr, ast.Store())], value)
    if isinstance(tree, ast.Subscript):
        return ast.Assign([ast.Subscript(tree.value, tree.slice, ast.Store())], value)
    raise Refused(f"nothing can be assigned to {type(tree).__name__}")


@cache
def _form(form: str) -> ast.expr:
    return ast.parse(form.replace("{}", "_"), mode="eval").body


def _filled(tree: ast.expr, names: Iterator[ast.expr]) -> ast.expr:
    if isinstance(tree, ast.Tuple):
        return ast.Tuple([_filled(item, names) for item in tree.elts], ast.Store())
    return next(names)
