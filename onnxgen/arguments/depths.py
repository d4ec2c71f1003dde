"""How many blocks stand in a row, as an argument: `[Block(dim) for _ in range(num_layers)]`.

Goes in: classes with spots. Comes out: classes in which rows of equal blocks are written with their number, and the
arguments that give it. A row may have any number of blocks if each takes what the one before it returns, and the shapes
in all of them are the same. A block that also stands outside of its row is left: who changes the number would change
half.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxgen.arguments.names import Argument
from onnxgen.arguments.written import Spot
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import Assign, ModuleDef, flattened
from onnxgen.code.quote import call, members, quote, walk
from onnxgen.code.torch_api import dotted
from onnxgen.common.names import ModulePath
from onnxgen.shapes.dims import Dim

LEAST = 2  # blocks of a row
SEQUENTIAL = "nn.Sequential"


@dataclass(frozen=True)
class _Row:
    """`self.name = nn.ModuleList([block for _ in range(count)])`; `written`: how often the block is in the text."""

    name: str
    kind: str
    block: ast.Call
    count: Spot
    written: int

    @property
    def argument(self) -> str:
        return "num_blocks" if "block" in self.name else "num_layers"

    @property
    def number(self) -> int:
        assert isinstance(self.count.value, int)
        return self.count.value

    @property
    def tree(self) -> ast.expr:
        made = quote("[block for _ in range(n)]", block=self.block, n=self.count)
        return call(self.kind, ast.Starred(made, ast.Load()) if self.kind == SEQUENTIAL else made)


def with_depths(classes: Sequence[ClassTree], module: ModuleDef) -> tuple[list[ClassTree], list[Argument]]:
    """Return the classes, and an argument for each name that all rows of one number can have."""
    made = Counter(name for tree in classes for part in (*tree.setup, *tree.items) for name in _made(part))
    rows = {
        id(statement): row
        for tree in classes
        for statement in tree.setup
        if (row := _row(statement)) is not None and made[dotted(row.block.func)] == row.written
        if _hands_on(tree, row.name) and all(_are_equal(module, path, row) for path in tree.paths)
    }
    numbers = Counter(name for name, _ in {(row.argument, row.number) for row in rows.values()})
    rows = {statement: row for statement, row in rows.items() if numbers[row.argument] == 1}
    arguments: dict[str, Argument] = {}
    for row in rows.values():
        argument = arguments.setdefault(row.argument, Argument(row.argument, row.number, {}, 0))
        argument.join(Argument(row.argument, row.number, {id(row.count): row.number}, 1))

    def final(statement: ast.stmt) -> ast.stmt:
        row = rows.get(id(statement))
        return ast.Assign(statement.targets, row.tree) if row and isinstance(statement, ast.Assign) else statement

    return [replace(tree, setup=[*map(final, tree.setup)]) for tree in classes], [*arguments.values()]


def _made(tree: ast.AST) -> Iterator[str]:
    """Yield the classes of the file that a tree makes instances of, and functions by their names."""
    return (dotted(node.func) for node in walk(tree) if isinstance(node, ast.Call))


def _row(statement: ast.stmt) -> _Row | None:
    """Return what a statement makes if it is a row of equal blocks of one class of the file."""
    if not isinstance(statement, ast.Assign) or not isinstance(made := statement.value, ast.Call):
        return None
    target, kind, items = statement.targets[0], dotted(made.func), list(made.args)
    if not isinstance(target, ast.Attribute) or dotted(target) != f"self.{target.attr}":
        return None
    if kind not in (SEQUENTIAL, "nn.ModuleList") or made.keywords or not items:
        return None
    if kind == "nn.ModuleList" and isinstance(items[0], ast.List):
        items = items[0].elts
    first = items[0].value if isinstance(items[0], ast.Starred) else items[0]
    if len(items) == 1 and isinstance(first, ast.ListComp):
        count = _counted(first)
        is_block = isinstance(first.elt, ast.Call) and isinstance(first.elt.func, ast.Name)
        return _Row(target.attr, kind, first.elt, count, 1) if count and is_block else None  # type: ignore[arg-type]
    if len(items) < LEAST or not isinstance(first, ast.Call) or not isinstance(first.func, ast.Name):
        return None
    alike = {ast.dump(item) for item in items}
    return _Row(target.attr, kind, first, Spot(len(items)), len(items)) if len(alike) == 1 else None


def _counted(tree: ast.ListComp) -> Spot | None:
    """Return the number in `[... for _ in range(3)]`."""
    loop = tree.generators[0].iter
    is_range = len(tree.generators) == 1 and isinstance(loop, ast.Call) and dotted(loop.func) == "range"
    number = loop.args[0] if is_range and len(loop.args) == 1 else None  # type: ignore[attr-defined]
    return number if isinstance(number, Spot) else None


def _hands_on(tree: ClassTree, name: str) -> bool:
    """True if a row is only called as a whole, or in `for layer in self.layers: x = layer(x)`."""
    nodes = [node for part in (*tree.body, *tree.own, *tree.setup) for node in walk(part)]
    places = [node for node in nodes if isinstance(node, ast.Attribute) and dotted(node) == f"self.{name}"]
    calls = [node for node in nodes if isinstance(node, ast.Call) and dotted(node.func) == f"self.{name}"]
    loops = [node for node in nodes if isinstance(node, ast.For) and dotted(node.iter) == f"self.{name}"]
    used = len(calls) + sum(map(_is_chain, loops))
    return used > 0 and len(places) == used + 1  # and where it is made


def _is_chain(loop: ast.For) -> bool:
    """True for `for layer in self.layers: x = layer(x, mask)`."""
    inner = loop.body[0]
    if len(loop.body) > 1 or not isinstance(inner, ast.Assign) or not isinstance(made := inner.value, ast.Call):
        return False
    names = [loop.target, made.func, *inner.targets, *made.args[:1]]
    layer, called, result, given, *_ = [node.id if isinstance(node, ast.Name) else "" for node in (*names, made)]
    return bool(result) and layer == called and result == given


def _are_equal(module: ModuleDef, path: str, row: _Row) -> bool:
    """Return True if the shapes in all blocks of a row are known, and the same, and no block is tied to another."""
    around: ModulePath = (*filter(None, path.split(".")), row.name)
    if any(member.path[: len(around)] == around for tie in module.ties for member in (tie.kept, tie.tied)):
        return False
    shapes: dict[str, list[tuple[Dim, ...] | None]] = {str(i): [] for i in range(row.number)}
    for statement in flattened(module.body):
        if not isinstance(statement, Assign):
            continue
        paths = [member.path for member in members(statement.value)]
        for number in {at[len(around)] for at in (*paths, statement.scope) if at[: len(around)] == around != at}:
            infos = [module.infos.get(target) for target in statement.targets]
            shapes.setdefault(number, []).extend(info.shape if info else None for info in infos)
    first, *others = shapes.values()
    return bool(first) and None not in first and all(other == first for other in others)
