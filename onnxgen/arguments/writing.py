"""Classes whose sizes are arguments.

Goes in: classes with spots, and the arguments of the network. Comes out: classes without spots. A class below the root
takes the arguments that it or a class that it makes needs, and its callers pass them on.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxgen.arguments.names import HEADS, WIDTHS, Argument, expression
from onnxgen.arguments.written import Spot, spotted
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import quote, rewrite, walk
from onnxgen.common.names import Namer
from onnxgen.structure.parameters import Parameter


def spots_of(classes: Sequence[ClassTree]) -> list[ClassTree]:
    """Return classes in which the numbers that `__init__` gives are spots."""
    return [replace(t, setup=[spotted(s) for s in t.setup], items=[spotted(i) for i in t.items]) for t in classes]


def write(classes: Sequence[ClassTree], arguments: list[Argument], reserved: frozenset[str]) -> list[ClassTree]:
    """Write the arguments into the classes, of which each stands after those that it uses."""
    writer = _Writer(arguments, reserved)
    return [writer.write(tree, tree is classes[-1]) for tree in classes]


TABLE = "widths"


class _Writer:
    def __init__(self, arguments: list[Argument], reserved: frozenset[str]) -> None:
        self.of = {spot: argument for argument in arguments for spot in argument.spots}
        self.reserved = reserved
        self.needs: dict[str, list[Argument]] = {}  # by the name of the class

    def write(self, tree: ClassTree, is_root: bool) -> ClassTree:
        needed: dict[int, Argument] = {}
        parts = sorted((*tree.setup, *tree.items), key=_is_store)  # what a class only stores comes last
        for node in (node for part in parts for node in walk(part)):
            found = [self.of[id(node)]] if id(node) in self.of else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found = self.needs.get(node.func.id, [])
            needed.update((id(argument), argument) for argument in found)
        needed = dict(sorted(needed.items(), key=lambda item: not is_root and _is_count(item[1])))
        self.needs[tree.name] = list(needed.values())
        namer = Namer(self.reserved | {parameter.name for parameter in tree.parameters} | _locals(tree))
        table = [argument for argument in needed.values() if argument.entry is not None]
        whole = namer.take(TABLE) if table and (is_root or len(table) > 1) else ""
        wanted = {id(a): "width" if a.name in namer and a.name in WIDTHS else a.name for a in needed.values()}
        names = {
            key: f"{whole}[{needed[key].entry}]" if whole and needed[key] in table else namer.take(name)
            for key, name in wanted.items()
        }
        defaults = {names[i].partition("[")[0]: str(a.number) for i, a in needed.items()}
        if whole:
            defaults[whole] = str((*(argument.number for argument in sorted(table, key=_entry)),))
        made = [Parameter(name, "int", default if is_root else None) for name, default in defaults.items()]
        own = sum(parameter.default is None for parameter in tree.parameters)
        counts = {names[i] for i, argument in needed.items() if _is_count(argument)}
        sizes = len(made) if is_root else sum(parameter.name not in counts for parameter in made)
        return replace(
            tree,
            setup=[self._final(part, names) for part in tree.setup],
            items=[self._final(part, names) for part in tree.items],
            parameters=[*made[:sizes], *tree.parameters[:own], *made[sizes:], *tree.parameters[own:]],
        )

    def _final(self, tree: Any, names: dict[int, str]) -> Any:
        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, Spot):
                argument = self.of.get(id(node))
                if argument is None:
                    return ast.Constant(node.value)
                return expression(node.value, argument, names[id(argument)])  # type: ignore[arg-type]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self.needs.get(node.func.id):
                sizes = [a for a in self.needs[node.func.id] if not _is_count(a)]
                counts = [a for a in self.needs[node.func.id] if _is_count(a)]
                before, behind = (_passed(part, names) for part in (sizes, counts))
                keywords = [ast.keyword(k.arg, self._final(k.value, names)) for k in node.keywords]
                args = [*before, *(self._final(a, names) for a in node.args), *behind]
                return ast.Call(node.func, args, keywords)
            return None

        return rewrite(tree, change)


def _passed(needed: list[Argument], names: dict[int, str]) -> list[ast.expr]:
    """Return what a class is given for the arguments that it needs. Several widths of a table are all of it."""
    whole = sum(argument.entry is not None for argument in needed) > 1
    texts = {id(a): names[id(a)].partition("[")[0] if whole and a.entry is not None else names[id(a)] for a in needed}
    return [quote(text) for text in dict.fromkeys(texts.values())]


def _entry(argument: Argument) -> int:
    assert argument.entry is not None
    return argument.entry


def _is_count(argument: Argument) -> bool:
    """True for numbers of heads and of blocks, which stand behind all sizes."""
    return argument.name in (HEADS, "num_layers", "num_blocks")


def _is_store(part: ast.AST) -> bool:
    """True for `self.num_heads = 4`."""
    return isinstance(part, ast.Assign) and isinstance(part.value, Spot)


def _locals(tree: ClassTree) -> set[str]:
    return {node.id for part in (*tree.setup, *tree.items) for node in walk(part) if isinstance(node, ast.Name)}
