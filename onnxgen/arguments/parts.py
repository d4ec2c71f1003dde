"""Sizes of unequal parts, which `forward` names, as numbers that the class stores: `x.split(self.split_sizes, dim=1)`.

Goes in: classes with spots. Comes out: classes that store the sizes, and where these are. They are found where one line
of the file splits a value into parts of such sizes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxgen.arguments.sizes import Size, is_integer, number
from onnxgen.arguments.written import Spot
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import rewrite, walk

STORED = "split_sizes"


def part_of(numbers: Sequence[int], i: int) -> Size:
    """Return the size that is the i-th number in `x.split([64, 18], dim=1)`."""
    return (f"split {tuple(numbers)}", "in", i)


def with_parts(classes: Sequence[ClassTree]) -> tuple[list[ClassTree], dict[Size, int]]:
    """Return the classes, and the spot of each size of a part."""
    found = {tree.name: [*_lists(tree)] for tree in classes}
    counts = Counter(numbers for lists in found.values() for _, numbers in lists)
    made: list[ClassTree] = []
    spots: dict[Size, int] = {}
    for tree in classes:
        lists = found[tree.name]
        if len(lists) == 1 and counts[lists[0][1]] == 1 and not _has(tree, STORED):
            written, numbers = lists[0]
            sizes = [Spot(one) for one in numbers]
            spots.update((part_of(numbers, i), id(spot)) for i, spot in enumerate(sizes))
            tree = _stored(tree, written, sizes)
        made.append(tree)
    return made, spots


def _has(tree: ClassTree, name: str) -> bool:
    """Return True if a class has an attribute of its own of a name."""
    nodes = (node for part in (*tree.setup, *tree.body, *tree.own) for node in walk(part))
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def _lists(tree: ClassTree) -> Iterator[tuple[ast.List, tuple[int, ...]]]:
    """Yield the lists of sizes in the `forward` of a class, and their numbers."""
    for node in (node for part in (*tree.body, *tree.own) for node in walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split":
            sizes = node.args[0] if node.args else None
            if isinstance(sizes, ast.List) and all(map(is_integer, sizes.elts)):
                yield sizes, tuple(number(size) for size in sizes.elts)  # type: ignore[arg-type]


def _stored(tree: ClassTree, written: ast.List, sizes: list[Spot]) -> ClassTree:
    """Return a class that stores sizes and reads them where they were written."""

    def own(context: ast.expr_context) -> ast.Attribute:
        return ast.Attribute(ast.Name("self", ast.Load()), STORED, context)

    body = [rewrite(part, lambda node: own(ast.Load()) if node is written else None) for part in tree.body]
    store = ast.Assign([own(ast.Store())], ast.List([*sizes], ast.Load()))
    return replace(tree, body=body, setup=[store, *tree.setup])
