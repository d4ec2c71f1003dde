"""Classes whose sizes are arguments.

Goes in: classes with spots, and the arguments of the network. Comes out: classes without spots. A class below the root
takes the arguments that it or a class that it makes needs, and its callers pass them on.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxgen.arguments.names import DEPTHS, HEADS, WIDTHS, Argument, Sums, total
from onnxgen.arguments.written import Spot, spotted
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import quote, rewrite, walk
from onnxgen.common.names import Namer
from onnxgen.structure.parameters import Parameter


def spots_of(classes: Sequence[ClassTree]) -> list[ClassTree]:
    """Return classes in which the numbers that `__init__` gives are spots."""
    return [replace(t, setup=[spotted(s) for s in t.setup], items=[spotted(i) for i in t.items]) for t in classes]


def write(
    classes: Sequence[ClassTree], arguments: list[Argument], sums: Sums, reserved: frozenset[str]
) -> list[ClassTree]:
    """Write the arguments and sums of them into the classes, of which each stands after those that it uses."""
    writer = _Writer(arguments, sums, reserved)
    return [writer.write(tree, tree is classes[-1]) for tree in classes]


class _Writer:
    def __init__(self, arguments: list[Argument], sums: Sums, reserved: frozenset[str]) -> None:
        of = {spot: argument for argument in arguments for spot in argument.spots}
        self.of: dict[int, list[tuple[Argument | None, int]]]
        self.of = {spot: [(argument, argument.spots[spot])] for spot, argument in of.items()}
        for spot, parts in sums.items():
            if any(part in of for part, _ in parts):
                self.of[spot] = [(of.get(part), number) for part, number in parts]
        self.reserved = reserved
        self.needs: dict[str, list[Argument]] = {}  # by the name of the class
        self.first: dict[str, dict[str, int]] = {}  # of each class, the first entry of each table that it is given

    def write(self, tree: ClassTree, is_root: bool) -> ClassTree:
        needed: dict[int, Argument] = {}
        parts = sorted((*tree.setup, *tree.items), key=_is_store)  # what a class only stores comes last
        for node in (node for part in parts for node in walk(part)):
            found = [argument for argument, _ in self.of.get(id(node), ()) if argument is not None]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found = self.needs.get(node.func.id, [])
            needed.update((id(argument), argument) for argument in found)
        needed = dict(sorted(needed.items(), key=lambda item: not is_root and _is_count(item[1])))
        self.needs[tree.name] = list(needed.values())
        namer = Namer(self.reserved | {parameter.name for parameter in tree.parameters} | _locals(tree))
        entries: dict[str, list[Argument]] = {}
        for argument in needed.values():
            entries.setdefault(argument.table, []).append(argument)
        wholes = {name: namer.take(name) for name, table in entries.items() if name and (is_root or len(table) > 1)}
        tables = {name: table for name, table in entries.items() if name}
        first = {name: 0 if is_root else min(map(_entry, table)) for name, table in tables.items()}
        self.first[tree.name] = first
        names: dict[int, str] = {}
        defaults: dict[str, str] = {}
        for key, a in needed.items():
            whole = wholes.get(a.table, "")
            wanted = "width" if a.name in namer and a.name in WIDTHS else a.name
            names[key] = f"{whole}[{_entry(a) - first[a.table]}]" if whole else namer.take(wanted)
            numbers = tuple(other.number for other in sorted(entries[a.table], key=_entry)) if whole else a.number
            defaults[whole or names[key]] = str(numbers)
        made = [Parameter(name, "int", default if is_root else None) for name, default in defaults.items()]
        own = sum(parameter.default is None for parameter in tree.parameters)
        counts = {names[i] for i, argument in needed.items() if _is_count(argument)}
        sizes = len(made) if is_root else sum(parameter.name not in counts for parameter in made)
        return replace(
            tree,
            setup=[self._final(part, names, tree.name) for part in tree.setup],
            items=[self._final(part, names, tree.name) for part in tree.items],
            parameters=[*made[:sizes], *tree.parameters[:own], *made[sizes:], *tree.parameters[own:]],
        )

    def _final(self, tree: Any, names: dict[int, str], maker: str) -> Any:
        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, Spot):
                return total(self.of.get(id(node), [(None, node.value)]), names)  # type: ignore[list-item]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self.needs.get(node.func.id):
                sizes = [a for a in self.needs[node.func.id] if not _is_count(a)]
                counts = [a for a in self.needs[node.func.id] if _is_count(a)]
                starts = {t: first - self.first[maker][t] for t, first in self.first[node.func.id].items()}
                before, behind = (_passed(part, names, starts) for part in (sizes, counts))
                keywords = [ast.keyword(k.arg, self._final(k.value, names, maker)) for k in node.keywords]
                args = [*before, *(self._final(a, names, maker) for a in node.args), *behind]
                return ast.Call(node.func, args, keywords)
            return None

        return rewrite(tree, change)


def _passed(needed: list[Argument], names: dict[int, str], starts: Mapping[str, int]) -> list[ast.expr]:
    """Return what a class is given for the arguments that it needs.

    Several widths of a table are all of it, from the first that the class needs on (`starts`): `widths[2:]`.
    """
    tables = Counter(argument.table for argument in needed if argument.table)
    rest = {table: f"[{start}:]" if start else "" for table, start in starts.items()}
    texts = [names[id(a)].partition("[")[0] + rest[a.table] if tables[a.table] > 1 else names[id(a)] for a in needed]
    return [quote(text) for text in dict.fromkeys(texts)]


def _entry(argument: Argument) -> int:
    assert argument.entry is not None
    return argument.entry


def _is_count(argument: Argument) -> bool:
    """True for numbers of heads and of blocks, which stand behind all sizes."""
    return argument.table == DEPTHS or argument.name in (HEADS, "num_layers", "num_blocks")


def _is_store(part: ast.AST) -> bool:
    """True for `self.num_heads = 4` and `self.split_sizes = [64, 18]`."""
    return isinstance(part, ast.Assign) and isinstance(part.value, (Spot, ast.List))


def _locals(tree: ClassTree) -> set[str]:
    return {node.id for part in (*tree.setup, *tree.items) for node in walk(part) if isinstance(node, ast.Name)}
