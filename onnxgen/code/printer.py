"""Prints syntax trees as lines of source, with the comments of `--annotate`.

Lines are never put together from text: a method is built as `ast`, checked against the allow-list,
and printed here. So the content of a name, comment or literal cannot become code. `class_tree.hold`
compares the finished file with the trees.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onnxgen.code.allowed import Refused
from onnxgen.code.quote import APART, REMARK, parsed
from onnxgen.common.names import FileText, is_plain

INDENT = "    "
LINE_LENGTH = 120  # of generated files; shape comments that do not fit are left out
GLANCE = 88  # of a line that is read at a glance: longer lists are written as loops, if they can be
_Statement = TypeVar("_Statement", bound=ast.stmt)


def remarked(statement: _Statement, dims: str = "", nodes: tuple[FileText, ...] = ()) -> _Statement:
    """Add a comment to a statement: the dims of its result, and the ONNX nodes that it comes from."""
    if dims or nodes or hasattr(statement, REMARK):
        setattr(statement, REMARK, (comment(dims), nodes))
    return statement


def dims_of(statement: ast.stmt) -> str:
    """Return the dims in the comment of a statement."""
    return str(getattr(statement, REMARK, ("", ()))[0])


def changed(statement: _Statement, **fields: Any) -> _Statement:
    """Return a copy of a statement, with its comment, in which some fields are others."""
    copied = copy(statement)
    for name, value in fields.items():
        setattr(copied, name, value)
    return copied


def like(statement: ast.stmt, other: _Statement, dims: str | None = None) -> _Statement:
    """Return `other` with the comment of another statement. `dims`: other dims than its own."""
    shown, nodes = getattr(statement, REMARK, ("", ()))
    return remarked(other, shown if dims is None else dims, nodes)


def apart(statement: _Statement) -> _Statement:
    """Return a statement with an empty line before it."""
    return changed(statement, **{APART: True})


def comment(text: str) -> str:
    """Check text for a comment or docstring: one line of printable ASCII without quotes and backslashes.

    Raises:
        Refused: it is other text. Text from an ONNX file must go through `names.printable` first.
    """
    if not is_plain(text):
        raise Refused(f"a comment has {text[:60]!a}")
    return text


def is_quotable(text: str) -> bool:
    """Return True if text can be between double quotes: it neither ends the literal nor has escapes."""
    return text.isprintable() and set(text).isdisjoint('"\\')


def between_quotes(text: str) -> str:
    """Check text that a template puts between double quotes. Raises `Refused` if it is not `is_quotable`."""
    if not is_quotable(text):
        raise Refused(f"text between quotes has {text[:60]!a}")
    return text


def bare(tree: ast.expr) -> str:
    """Print an expression where a tuple needs no parentheses: after `return` and `for`, and before `=`."""
    if isinstance(tree, ast.Tuple) and tree.elts:
        return ", ".join(map(ast.unparse, tree.elts)) + ("," if len(tree.elts) == 1 else "")
    return ast.unparse(tree)


def argument(tree: ast.arg, default: ast.expr | None = None) -> str:
    """Print a parameter of a function: `x: Tensor = 1` or `x=1`."""
    if tree.annotation is None:
        return tree.arg + ("" if default is None else f"={ast.unparse(default)}")
    text = f"{tree.arg}: {ast.unparse(tree.annotation)}"
    return text + ("" if default is None else f" = {ast.unparse(default)}")


def lines(block: Sequence[ast.stmt], level: int = 0) -> list[str]:
    """Print a block with its comments, at an indentation level."""
    printed: list[str] = []
    for statement in block:
        printed += [""] if hasattr(statement, APART) else []
        printed += _with_remark(statement, _head(statement), level)
        printed += lines(getattr(statement, "body", []), level + 1)
        if isinstance(statement, ast.If) and statement.orelse:
            printed += [f"{INDENT * level}else:", *lines(statement.orelse, level + 1)]
    return printed


def _with_remark(statement: ast.stmt, head: str, level: int) -> list[str]:
    dims, nodes = getattr(statement, REMARK, ("", ()))
    room = LINE_LENGTH - 2 * len(INDENT) - len(INDENT) * level
    if dims and len(head) + len(dims) + 4 <= room:
        head = f"{head}  # {dims}"
    printed = annotated(INDENT * level + head, nodes)
    if nodes and len(printed) == 1 and len(printed[0]) > LINE_LENGTH:
        raise Refused("the comment behind a line is too long")
    return printed


def _head(statement: ast.stmt) -> str:
    """Print a statement without its nested blocks."""
    if isinstance(statement, ast.Assign):
        return f"{' = '.join(map(bare, statement.targets))} = {ast.unparse(statement.value)}"
    if isinstance(statement, ast.Expr):
        return ast.unparse(statement.value)
    if isinstance(statement, ast.Return):
        return "return" if statement.value is None else f"return {bare(statement.value)}"
    if isinstance(statement, (ast.If, ast.While)):
        word = "if" if isinstance(statement, ast.If) else "while"
        return f"{word} {ast.unparse(statement.test)}:"
    if isinstance(statement, ast.For):
        return f"for {bare(statement.target)} in {ast.unparse(statement.iter)}:"
    if isinstance(statement, ast.With):
        return f"with {', '.join(ast.unparse(item.context_expr) for item in statement.items)}:"
    if isinstance(statement, (ast.Pass, ast.Break)):
        return "pass" if isinstance(statement, ast.Pass) else "break"
    raise Refused(f"cannot print a {type(statement).__name__}")


annotation = parsed  # of a value in a signature


def target(names: Sequence[str], form: str = "") -> ast.expr:
    """Return the target of an assignment to one or several names. `form`: their nesting, `"{}, ({}, {})"`."""
    nodes: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    if not form:
        return nodes[0] if len(nodes) == 1 else ast.Tuple(nodes, ast.Store())
    left = iter(nodes)
    tree = _filled(parsed(form.replace("{}", "_")), left)
    if next(left, None) is not None:
        raise Refused(f"{form!a} has no place for {len(names)} names")
    return tree


def assigned(tree: ast.expr, value: ast.expr) -> ast.Assign:
    """Return `tree = value`, for an expression that reads a name, attribute or item."""
    if not isinstance(tree, (ast.Name, ast.Attribute, ast.Subscript)):
        raise Refused(f"cannot assign to a {type(tree).__name__}")
    target = copy(tree)
    target.ctx = ast.Store()
    return ast.Assign([target], value)


def _filled(tree: ast.expr, names: Iterator[ast.expr]) -> ast.expr:
    if isinstance(tree, ast.Tuple):
        return ast.Tuple([_filled(item, names) for item in tree.elts], ast.Store())
    return next(names)


MAX_NODES = 8  # named in one comment
MARK_LENGTH = 88 - 8  # of a line of `forward`, without its indentation
ANNOTATION = "onnx: "


@dataclass
class Marks:
    """The nodes of each line of one generation. The comment on a line has a number, the mark, in place of them.

    Attributes:
        lines: the nodes of each mark.
        merged: pairs of groups of nodes that share a statement, since their scopes share a class.
    """

    lines: list[tuple[FileText, ...]] = field(default_factory=list)
    merged: list[tuple[tuple[FileText, ...], tuple[FileText, ...]]] = field(default_factory=list)

    def nodes(self, mark: int) -> list[FileText]:
        """Return the nodes of a mark, and those of all scopes that share its line."""
        merged: dict[FileText, list[FileText]] = {}
        for own, other in self.merged:
            for name in own:
                merged.setdefault(name, []).extend(other)
        names = list(dict.fromkeys(self.lines[mark]))
        for name in names:  # `found` grows meanwhile
            names += [one for one in dict.fromkeys(merged.get(name, ())) if one not in names]
        return names


_MARKS: ContextVar[Marks | None] = ContextVar("marks", default=None)


@contextmanager
def marked() -> Iterator[Marks]:
    """Inside the `with`, `--annotate` writes marks instead of names and collects the names."""
    token = _MARKS.set(marks := Marks())
    try:
        yield marks
    finally:
        _MARKS.reset(token)


def note_merged(own: tuple[FileText, ...], other: tuple[FileText, ...]) -> None:
    """Record that one statement does the work of two groups of nodes."""
    if (marks := _MARKS.get()) is not None and own != other:
        marks.merged.append((own, other))


def annotated(line: str, nodes: tuple[FileText, ...]) -> list[str]:
    """Add the names of nodes to a line of `forward`: at its end or, if it would get too long, above it."""
    nodes = tuple(dict.fromkeys(nodes))
    if not nodes:
        return [line]
    if (marks := _MARKS.get()) is not None:
        marks.lines.append(nodes)
        names = [f"@{len(marks.lines) - 1}"]
    else:
        names = [_shown(name) for name in nodes[:MAX_NODES]]
        if len(nodes) > MAX_NODES:
            names[-1] += f" and {len(nodes) - MAX_NODES} more"
    whole = line + ("; " if "  # [" in line else "  # ") + ANNOTATION + ", ".join(names)
    if len(whole) <= MARK_LENGTH:
        return [whole]
    start = line[: len(line) - len(line.lstrip())] + "# " + ANNOTATION
    above = textwrap.wrap(", ".join(names), MARK_LENGTH - len(start), break_long_words=False, break_on_hyphens=False)
    return [*(start + text for text in above), line]


def _shown(name: FileText) -> str:
    """Return a name for a comment, without characters that could start a directive of a tool (`# fmt: skip`)."""
    return re.sub(r"[#;]", "?", name.printable(60)).strip() or "?"
