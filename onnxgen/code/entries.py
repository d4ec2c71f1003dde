"""The widths of a table by names: `c1, c2, c3 = widths`, where a constructor reads most of them more than once.

Goes in: the classes of a file. Comes out: the same classes; the network's constructor takes such a table apart. A loop
over the table needs its places, which stay then.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from onnxgen.code.alike import entry, written_once
from onnxgen.code.chains import chained
from onnxgen.code.class_source import length
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import rewrite, walk
from onnxgen.common.names import UNUSED

TABLE = "widths"
LEAST = 3  # entries of a table that is worth a line
OFTEN = 2  # times that an entry is read, on average


def written_short(classes: Sequence[ClassTree], reserved: frozenset[str]) -> list[ClassTree]:
    """Return the classes with lists written once, and with names of widths in the network if that is no longer.

    Args:
        classes: those of a file, the network last.
        reserved: names that no variable may have.
    """
    once = written_once(chained(classes, reserved), reserved)
    apart = _taken_apart(classes[-1], reserved)
    if apart is None or not all(entry(node) is not None for node in _of_table(once[-1])):
        return once
    short = written_once(chained([*classes[:-1], apart], reserved), reserved)
    return short if length(short[-1].source) <= length(once[-1].source) else once


def _taken_apart(tree: ClassTree, reserved: frozenset[str]) -> ClassTree | None:
    """Return a class that takes a table apart; None if that is not worth a line."""
    default = next((p.default for p in tree.parameters if p.name == TABLE and p.default), None)
    names = [f"c{i + 1}" for i, _ in enumerate(ast.literal_eval(default) if default else ())]
    taken = {node.id for part in tree.setup for node in walk(part) if isinstance(node, ast.Name)}
    uses = Counter(map(entry, _of_table(tree)))
    if len(names) < LEAST or sum(uses.values()) < OFTEN * len(names) or tree.items:
        return None
    if not {*names}.isdisjoint(taken | {parameter.name for parameter in tree.parameters} | reserved):
        return None

    def named(node: ast.AST) -> ast.expr | None:
        place = entry(node) if _is_of_table(node) else None
        return None if place is None else ast.Name(names[place], ast.Load())

    targets: list[ast.expr] = [ast.Name(name if i in uses else UNUSED, ast.Store()) for i, name in enumerate(names)]
    apart = ast.Assign([ast.Tuple(targets, ast.Store())], ast.Name(TABLE, ast.Load()))
    return replace(tree, setup=[apart, *(rewrite(part, named) for part in tree.setup)])


def _of_table(tree: ClassTree) -> list[ast.AST]:
    return [node for part in tree.setup for node in walk(part) if _is_of_table(node)]


def _is_of_table(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name) and tree.value.id == TABLE
