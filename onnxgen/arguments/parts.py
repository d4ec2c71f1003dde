"""Sizes that `forward` names, as numbers that the class stores: `x.split(self.split_sizes, dim=1)`.

They are those of unequal parts, and the channels of a map that a row of numbers becomes: `x.reshape(-1, self.channels,
8, 8)`. Goes in: classes with spots. Comes out: classes that store the sizes, and where these are. They are found where
one line of the file splits a value into parts of such sizes, or makes such a map.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxgen.arguments.sizes import Size, is_integer, number
from onnxgen.arguments.written import Spot
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import rewrite, value_of, walk
from onnxgen.structure.literals import is_literal

STORED, CHANNELS = "split_sizes", "channels"
MAP = 4  # axes of images


def part_of(numbers: Sequence[int], i: int) -> Size:
    """Return the size that is the i-th number in `x.split([64, 18], dim=1)`, or in `x.reshape(-1, 32, 8, 8)`."""
    return (f"split {tuple(numbers)}", "in", i)


def is_map(numbers: Sequence[int]) -> bool:
    """True for the numbers of `x.reshape(-1, 32, 8, 8)`."""
    return len(numbers) == MAP and numbers[0] == -1 and min(numbers[1:]) > 1


def with_parts(classes: Sequence[ClassTree]) -> tuple[list[ClassTree], dict[Size, int]]:
    """Return the classes, and the spot of each size of a part."""
    found = {tree.name: [*_written(tree)] for tree in classes}
    counts = Counter(numbers for written in found.values() for _, numbers in written)
    made: list[ClassTree] = []
    spots: dict[Size, int] = {}
    for tree in classes:
        written = found[tree.name]
        name = CHANNELS if written and is_map(written[0][1]) else STORED
        if len(written) == 1 and counts[written[0][1]] == 1 and not _has(tree, name):
            place, numbers = written[0]
            sizes = [Spot(one) for one in (numbers[1:2] if name == CHANNELS else numbers)]
            spots.update((part_of(numbers, i), id(spot)) for i, spot in enumerate(sizes))
            tree = _stored(tree, name, place, sizes)
        made.append(tree)
    return made, spots


def _has(tree: ClassTree, name: str) -> bool:
    """Return True if a class has an attribute of its own of a name."""
    nodes = (node for part in (*tree.setup, *tree.body, *tree.own) for node in walk(part))
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def _written(tree: ClassTree) -> Iterator[tuple[ast.expr, tuple[int, ...]]]:
    """Yield where the `forward` of a class has the sizes of parts, or the channels of a map, with all numbers there."""
    for node in (node for part in (*tree.body, *tree.own) for node in walk(part)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        first = node.args[0]
        if node.func.attr == "split" and isinstance(first, ast.List) and all(map(is_integer, first.elts)):
            yield first, tuple(number(size) for size in first.elts)  # type: ignore[arg-type]
        elif node.func.attr == "reshape" and all(map(is_literal, node.args)):
            numbers = tuple(map(value_of, node.args))
            if is_map(numbers):
                yield node.args[1], numbers


def _stored(tree: ClassTree, name: str, written: ast.expr, sizes: list[Spot]) -> ClassTree:
    """Return a class that stores sizes and reads them where they were written."""

    def own(context: ast.expr_context) -> ast.Attribute:
        return ast.Attribute(ast.Name("self", ast.Load()), name, context)

    body = [rewrite(part, lambda node: own(ast.Load()) if node is written else None) for part in tree.body]
    value = sizes[0] if name == CHANNELS else ast.List([*sizes], ast.Load())
    return replace(tree, body=body, setup=[ast.Assign([own(ast.Store())], value), *tree.setup])
