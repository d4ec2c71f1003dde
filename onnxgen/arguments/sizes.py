"""Classes of sizes that follow from each other.

A size is an axis of a value, or a number in the call that makes a member. Sizes of one class are in proportion: whoever
changes one changes all. A class is fixed if something that no rule describes depends on it (`rules.py`): then the
network may work with this size only.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeGuard

from onnxgen.code.module_def import Member
from onnxgen.shapes.dims import Dim

Size = tuple[Hashable, ...]  # (value, axis), or the path of a member and the place of a number in its call
Sizes = tuple[Any, ...]  # those of all axes of a value; None: nothing is known of this axis
Place = tuple[int | str, ...]


class Related:
    """Classes of sizes that are in proportion (union-find).

    Attributes:
        value: the number that each size is in the file.
        fixed: representatives of the classes that can't change; see `is_fixed`.
    """

    def __init__(self) -> None:
        self.value: dict[Size, Dim] = {}
        self._parent: dict[Size, Size] = {}
        self._fixed: set[Size] = set()

    def add(self, size: Size, value: Dim) -> Size:
        self.value.setdefault(size, value)
        self._parent.setdefault(size, size)
        return size

    def add_tied(self, size: Size, value: Dim, to: Size) -> Size:
        """Add a size that is in proportion to another."""
        self.tie(to, self.add(size, value))
        return size

    def find(self, size: Size) -> Size:
        while (above := self._parent[size]) != size:
            self._parent[size] = size = self._parent[above]
        return size

    def tie(self, a: Size, b: Size) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._parent[b] = a
            if b in self._fixed:
                self._fixed.add(a)

    def fix(self, sizes: Iterable[Size | None]) -> None:
        self._fixed.update(self.find(size) for size in sizes if size is not None)

    def is_fixed(self, size: Size) -> bool:
        return self.find(size) in self._fixed

    def classes(self) -> Iterator[list[Size]]:
        """Yield the classes that may change."""
        found: dict[Size, list[Size]] = {}
        for size in self._parent:
            found.setdefault(self.find(size), []).append(size)
        yield from (sizes for first, sizes in found.items() if first not in self._fixed)


def slot(member: Member, *place: int | str) -> Size:
    """Return the size that is the number at a place in the call that makes a member."""
    return (".".join(member.path), "in", *place)


def is_slot(size: Size) -> bool:
    return len(size) > 1 and size[1] == "in"


def places(tree: ast.AST, at: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield the integers in an expression with their places: indices of arguments and items, names of keywords."""
    if is_integer(tree):
        yield at, number(tree)
    elif isinstance(tree, ast.Call):
        for i, argument in enumerate(tree.args):
            yield from places(argument, (*at, i))
        for keyword in tree.keywords:
            yield from places(keyword.value, (*at, keyword.arg or ""))
    elif isinstance(tree, (ast.Tuple, ast.List)):
        for i, item in enumerate(tree.elts):
            yield from places(item, (*at, i))


def number(tree: ast.Constant) -> int:
    assert isinstance(tree.value, int)
    return tree.value


def is_integer(tree: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(tree, ast.Constant) and type(tree.value) is int
