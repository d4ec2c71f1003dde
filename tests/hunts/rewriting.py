"""Edits of a generated module's text: those that keep the function, and those that change it.

An edit takes a `Source` and random numbers, and returns what it made, or None where it doesn't apply.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Replaced = tuple[ast.AST, str]
COMMON = {n for owner in (Tensor, torch, nn, F, nn.Module, str, dict) for n in dir(owner)}
GENERATED = ("from_pretrained", "state_dict")


@dataclass
class Edited:
    """An edited text.

    Attributes:
        text: all of it.
        lines: those that were touched.
        attributes: what was touched in `__init__`: the lines that call it are right, too.
        hidden: whether it may take other inputs than drawn ones to see the change.
    """

    text: str
    lines: set[int] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    hidden: bool = False


class Source:
    """A text, with its tree."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.rows = text.splitlines(keepends=True)

    def of(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def classes(self) -> list[ast.ClassDef]:
        return [n for n in self.tree.body if isinstance(n, ast.ClassDef)]

    def methods(self, initial: bool) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
        for owner in self.classes():
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and (node.name == "__init__") == initial:
                    yield owner, node

    def forward(self, owner: ast.ClassDef) -> ast.FunctionDef | None:
        return next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None)

    def found(self, kind: type, initial: bool = False) -> list[Any]:
        return [n for _, method in self.methods(initial) for n in ast.walk(method) if isinstance(n, kind)]

    def statements(self) -> list[tuple[list[ast.stmt], int]]:
        """The simple statements of methods, each as its block and its number there."""
        blocks = [
            n.body for _, m in self.methods(False) for n in ast.walk(m) if isinstance(n, (ast.FunctionDef, ast.For))
        ]
        return [(b, i) for b in blocks for i, s in enumerate(b) if isinstance(s, (ast.Assign, ast.Return))]

    def replaced(self, *changes: Replaced, attributes: set[str] | None = None, hidden: bool = False) -> Edited:
        """Return the text with nodes replaced, each by another text."""
        data = [row.encode() for row in self.rows]
        starts = [0]
        for row in data:
            starts.append(starts[-1] + len(row))
        whole = b"".join(data)
        spans = []
        for node, new in changes:
            first: Any = node
            spans.append(
                (
                    starts[first.lineno - 1] + first.col_offset,
                    starts[first.end_lineno - 1] + first.end_col_offset,
                    new.encode(),
                )
            )
        lines: set[int] = set()
        shift = 0
        for start, end, new in sorted(spans):
            line = whole[:start].count(b"\n") + 1 + shift
            lines |= set(range(line, line + new.count(b"\n") + 1))
            shift += new.count(b"\n") - whole[start:end].count(b"\n")
        for start, end, new in sorted(spans, reverse=True):
            whole = whole[:start] + new + whole[end:]
        return Edited(whole.decode(), lines, attributes or set(), hidden)


Edit = Callable[[Source, random.Random], Edited | None]
KEEP: dict[str, Edit] = {}
CHANGE: dict[str, Edit] = {}


def keeps(function: Edit) -> Edit:
    KEEP[function.__name__] = function
    return function


def changes(function: Edit) -> Edit:
    CHANGE[function.__name__] = function
    return function


def drawn(rng: random.Random, items: Any) -> Any:
    items = list(items)
    return rng.choice(items) if items else None


def called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls one of these: `F.relu`, or `.view` for a method of any value."""
    if not isinstance(node, ast.Call):
        return False
    text = ast.unparse(node.func)
    return any(text.endswith(n) if n.startswith(".") else text == n for n in names)


def is_tensor_like(node: ast.AST) -> bool:
    """Whether an expression is no plain number, as far as the text says."""
    return (
        not isinstance(node, ast.Constant)
        and ".shape" not in ast.unparse(node)
        and not (
            isinstance(node, ast.Name)
            and (node.id.isupper() or node.id in ("dim", "height", "width", "length", "size"))
        )
    )


def made(owner: ast.ClassDef) -> dict[str, ast.Assign]:
    """The attributes that a class's `__init__` sets, each with its statement."""
    init = next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    found = {}
    for node in init.body if init else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                found[target.attr] = node
    return found


def layers(source: Source, *kinds: str) -> list[tuple[ast.ClassDef, str, ast.Call]]:
    """Attributes that are layers of these kinds: class, name, call of the constructor."""
    return [
        (owner, name, node.value)
        for owner in source.classes()
        for name, node in made(owner).items()
        if isinstance(node.value, ast.Call) and called(node.value, *kinds)
    ]


def calls_of(owner: ast.ClassDef, name: str) -> list[ast.Call]:
    """The calls `self.name(...)` in methods."""
    return [n for n in ast.walk(owner) if isinstance(n, ast.Call) and ast.unparse(n.func) == f"self.{name}"]


def indent(node: ast.stmt) -> str:
    return " " * node.col_offset


def with_helper(text: str, helper: str) -> str:
    """Return a text with a function in front of the first class."""
    at = re.search(r"^(class|def|@) ?", text, re.MULTILINE)
    assert at is not None
    return f"{text[: at.start()]}{helper}\n\n{text[at.start() :]}"


def gives_tensor(n: ast.Call) -> bool:
    return called(n, "F.relu", "F.gelu", "F.silu", "F.softmax", "F.scaled_dot_product_attention", "torch.tanh") or (
        ast.unparse(n.func)
        .split(".")[-1]
        .rstrip("0123456789")
        .startswith(("conv", "fc", "norm", "proj", "dense", "linear", "bn"))
    )


Spelling = Callable[[Source, Any, random.Random], str | None]


def spelled(name: str, kind: type, keep: bool = True) -> Callable[[Spelling], Spelling]:
    """Register an edit that writes one expression in another way."""

    def register(function: Spelling) -> Spelling:
        def edit(source: Source, rng: random.Random) -> Edited | None:
            nodes = source.found(kind)
            rng.shuffle(nodes)
            for node in nodes:
                new = function(source, node, rng)
                if new is not None:
                    return source.replaced((node, new))
            return None

        edit.__name__ = name
        (KEEP if keep else CHANGE)[name] = edit
        return function

    return register


def args_of(source: Source, node: ast.Call) -> list[str]:
    return [source.of(a) for a in node.args]
