"""How many blocks stand in a row, as an argument: `[Block(dim) for _ in range(num_layers)]`.

Goes in: classes with spots. Comes out: classes in which rows of equal blocks are written with their number, and the
arguments that give it. A row may have any number of blocks if each takes what the one before it returns, and the shapes
in all of them are the same. The first of a row may be another: `[Block(3, dim), *[Block(dim, dim) for _ in
range(num_blocks - 1)]]`. A block that also stands outside of its row is left: who changes the number would change half.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onnxgen.arguments.names import DEPTHS, Argument
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
    """`self.name = nn.ModuleList([block for _ in range(count)])`; `written`: how often the block is in the text.

    `first` stands before the row, if the first layer is another.
    """

    name: str
    kind: str
    block: ast.Call
    count: Spot
    written: int
    first: ast.Call | None = None

    @property
    def argument(self) -> str:
        return "num_blocks" if "block" in self.name else "num_layers"

    @property
    def maker(self) -> str:
        return dotted(self.block.func)

    @property
    def number(self) -> int:
        assert isinstance(self.count.value, int)
        return self.count.value

    @property
    def tree(self) -> ast.expr:
        count = self.count if self.first is None else ast.BinOp(self.count, ast.Sub(), ast.Constant(1))
        made: ast.expr = quote("[block for _ in range(n)]", block=self.block, n=count)
        row = ast.Starred(made, ast.Load())
        if self.first is not None:
            made = ast.List([self.first, row], ast.Load())
            return call(self.kind, *([self.first, row] if self.kind == SEQUENTIAL else [made]))
        return call(self.kind, row if self.kind == SEQUENTIAL else made)


def with_depths(classes: Sequence[ClassTree], module: ModuleDef) -> tuple[list[ClassTree], list[Argument]]:
    """Return the classes, and an argument for each name that all rows of one number can have."""
    calls = [node for tree in classes for part in (*tree.setup, *tree.items) for node in _calls(part)]
    made = Counter(map(ast.dump, calls))
    found = [
        (tree, statement, row)
        for tree in classes
        for statement in tree.setup
        if (row := _row(statement)) is not None and made[ast.dump(row.block)] == row.written
        if _hands_on(tree, row.name) and all(_are_equal(module, path, row) for path in tree.paths)
    ]
    makers = Counter(dotted(node.func) for node in calls)
    makers.subtract(name for tree in classes for statement in tree.setup if (name := _alone(statement)))
    rows: dict[int, _Row] = {}
    arguments: dict[str, Argument] = {}
    for maker in dict.fromkeys(row.maker for _, _, row in found):
        alike = [one for one in found if one[2].maker == maker]
        if makers[maker] > sum(row.written + (row.first is not None) for _, _, row in alike):
            continue  # another row has blocks of this class
        if len(alike) == 1 and alike[0][2].first is not None and alike[0][2].number == LEAST:
            continue  # two blocks, of which each is another
        paths = {path for tree, _, _ in alike for path in tree.paths}
        if len(alike) > 1 and (len(paths) > 1 or DEPTHS in {argument.table for argument in arguments.values()}):
            continue
        for i, (_, statement, row) in enumerate(alike):
            rows[id(statement)] = row
            name = f"{DEPTHS} {i}" if len(alike) > 1 else row.argument
            entry, table = (i, DEPTHS) if len(alike) > 1 else (None, "")
            argument = Argument(name, row.number, {id(row.count): row.number}, 1, entry, table)
            arguments.setdefault(f"{name} {row.number}", Argument(name, row.number, {}, 0, entry, table)).join(argument)
    numbers = Counter(argument.name for argument in arguments.values())
    kept = [argument for argument in arguments.values() if numbers[argument.name] == 1]
    given = {spot for argument in kept for spot in argument.spots}

    def final(statement: ast.stmt) -> ast.stmt:
        row = rows.get(id(statement))
        is_given = row is not None and id(row.count) in given
        return ast.Assign(statement.targets, row.tree) if is_given and isinstance(statement, ast.Assign) else statement  # type: ignore[union-attr]

    return [replace(tree, setup=[*map(final, tree.setup)]) for tree in classes], kept


def _alone(statement: ast.stmt) -> str:
    """Return the class of a block that is no part of a row, `self.first = Block(3, 8)`; "" for other statements."""
    made = statement.value if isinstance(statement, ast.Assign) else None
    return dotted(made.func) if isinstance(made, ast.Call) else ""


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in walk(tree) if isinstance(node, ast.Call))


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
    if len({ast.dump(item) for item in items}) == 1:
        return _Row(target.attr, kind, first, Spot(len(items)), len(items))
    return _behind_first(target.attr, kind, first, items[1:])


def _behind_first(name: str, kind: str, first: ast.Call, others: list[ast.expr]) -> _Row | None:
    """Return the row whose first block is of the class of the others, and takes something else."""
    block, number, written = others[0], len(others), len(others)
    if isinstance(block, ast.Starred) and isinstance(block.value, ast.ListComp) and number == 1:
        count = _counted(block.value)
        block, number, written = block.value.elt, int(count.value) if count else 0, 1  # type: ignore[arg-type]
    is_row = number and isinstance(block, ast.Call) and all(ast.dump(other) == ast.dump(block) for other in others[1:])
    if not is_row or not isinstance(block, ast.Call) or dotted(first.func) != dotted(block.func):
        return None
    return _Row(name, kind, block, Spot(1 + number), written, first)


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
            shapes.get(number, []).extend(info.shape if info else None for info in infos)
    if row.first is not None:
        before = shapes.pop("0")
        if not before or not shapes["1"] or before[-1] != shapes["1"][-1]:
            return False  # the second block makes another shape of what it takes
    first, *others = shapes.values()
    return bool(first) and None not in first and all(other == first for other in others)
