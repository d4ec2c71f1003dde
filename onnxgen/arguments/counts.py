"""Numbers of blocks and of heads as arguments, and sizes of parts that a class stores.

Goes in: classes with spots. Comes out: classes that write or store the number, and the arguments that give it.

- `with_depths`: how many blocks stand in a row, `[Block(dim) for _ in range(num_layers)]`. A row may have any number of
  blocks if each takes what the one before it returns, and the shapes in all of them are the same. The first of a row
  may be another: `[Block(3, dim), *[Block(dim, dim) for _ in range(num_blocks - 1)]]`. A block that also stands outside
  of its row is left: who changes the number would change half.
- `with_heads`: the number of attention's heads, `x.unflatten(-1, (self.num_heads, -1))`. It may change where a class
  splits the width of q, k and v into heads, attends, and merges the heads again, and nothing else depends on them:
  whatever their number is, the width stays.
- `with_parts`: sizes that `forward` names, as numbers that the class stores. They are those of unequal parts,
  `x.split(self.split_sizes, dim=1)`, and the channels of a map that a row of numbers becomes, `x.reshape(-1,
  self.channels, 8, 8)`. They are found where one line of the file splits a value into parts of such sizes, or makes
  such a map.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxgen.arguments.names import DEPTHS, HEADS, Argument
from onnxgen.arguments.sizes import Size, is_integer, number
from onnxgen.arguments.written import Spot, nodes_of
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import Assign, ModuleDef, expressions, flattened
from onnxgen.code.quote import Ref, call, members, quote, rewrite, value_of, walk
from onnxgen.code.steps import is_method
from onnxgen.code.torch_api import dotted, function_of
from onnxgen.common.names import ModulePath
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info
from onnxgen.structure.layout import SELF
from onnxgen.structure.literals import is_literal

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
        blocks: ast.expr = quote("[block for _ in range(n)]", block=self.block, n=count)
        row = ast.Starred(blocks, ast.Load())
        if self.first is not None:
            blocks = ast.List([self.first, row], ast.Load())
            return call(self.kind, *([self.first, row] if self.kind == SEQUENTIAL else [blocks]))
        return call(self.kind, row if self.kind == SEQUENTIAL else blocks)


def with_depths(classes: Sequence[ClassTree], module: ModuleDef) -> tuple[list[ClassTree], list[Argument]]:
    """Return the classes, and an argument for each name that all rows of one number can have."""
    calls = [node for tree in classes for node in nodes_of(tree) if isinstance(node, ast.Call)]
    makers = Counter(map(function_of, calls))
    makers.subtract(_alone(statement) for tree in classes for statement in tree.setup)
    rows, arguments = _varying([*_rows(classes, module, Counter(map(ast.dump, calls)))], makers)
    numbers = Counter(argument.name for argument in arguments)
    kept = [argument for argument in arguments if numbers[argument.name] == 1]
    reached = {spot for argument in kept for spot in argument.spots}
    trees = {key: row.tree for key, row in rows.items() if id(row.count) in reached}
    return [replace(tree, setup=[_with_value(s, trees.get(id(s))) for s in tree.setup]) for tree in classes], kept


def _varying(
    candidates: list[tuple[ClassTree, ast.stmt, _Row]], makers: Mapping[str, int]
) -> tuple[dict[int, _Row], list[Argument]]:
    """Return the rows that get another number of blocks, by their statements, and the arguments for the numbers.

    `makers`: how often blocks of each class are made in rows, or in anything but a statement of their own.
    """
    rows: dict[int, _Row] = {}
    arguments: dict[str, Argument] = {}
    for maker in dict.fromkeys(row.maker for _, _, row in candidates):
        alike = [one for one in candidates if one[2].maker == maker]
        if makers[maker] > sum(row.written + (row.first is not None) for _, _, row in alike):
            continue  # another row has blocks of this class
        if not _may_vary(alike, DEPTHS in {argument.table for argument in arguments.values()}):
            continue
        for i, (_, statement, row) in enumerate(alike):
            rows[id(statement)] = row
            argument = _argument(row, i if len(alike) > 1 else None)
            first = arguments.setdefault(f"{argument.name} {row.number}", argument)
            if first is not argument:
                first.join(argument)
    return rows, [*arguments.values()]


def _rows(
    classes: Sequence[ClassTree], module: ModuleDef, written: Counter[str]
) -> Iterator[tuple[ClassTree, ast.stmt, _Row]]:
    """Yield the rows that may have another number of blocks. `written`: how often the text has each call."""
    for tree in classes:
        for statement in tree.setup:
            row = _row(statement)
            if row is None or written[ast.dump(row.block)] != row.written or not _hands_on(tree, row.name):
                continue
            if all(_are_equal(module, path, row) for path in tree.paths):
                yield tree, statement, row


def _may_vary(alike: list[tuple[ClassTree, ast.stmt, _Row]], has_table: bool) -> bool:
    """True if the numbers of rows of one class may change. Several rows are one table, of which there is one."""
    if len(alike) == 1:
        row = alike[0][2]
        return row.first is None or row.number != LEAST  # else they are two blocks, of which each is another
    return not has_table and len({path for tree, _, _ in alike for path in tree.paths}) < 2


def _argument(row: _Row, entry: int | None) -> Argument:
    name, table = (row.argument, "") if entry is None else (f"{DEPTHS} {entry}", DEPTHS)
    return Argument(name, row.number, {id(row.count): row.number}, 1, entry, table)


def _with_value(statement: ast.stmt, value: ast.expr | None) -> ast.stmt:
    """Return an assignment of another value, if there is one."""
    if value is None or not isinstance(statement, ast.Assign):
        return statement
    return ast.Assign(statement.targets, value)


def _alone(statement: ast.stmt) -> str:
    """Return the class of a block that is no part of a row, `self.first = Block(3, 8)`; "" for other statements."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return dotted(value.func) if isinstance(value, ast.Call) else ""


def _row(statement: ast.stmt) -> _Row | None:
    """Return what a statement makes if it is a row of equal blocks of one class of the file."""
    if not isinstance(statement, ast.Assign) or not isinstance(container := statement.value, ast.Call):
        return None
    target, kind, items = statement.targets[0], dotted(container.func), list(container.args)
    if not isinstance(target, ast.Attribute) or dotted(target) != f"self.{target.attr}":
        return None
    if kind not in (SEQUENTIAL, "nn.ModuleList") or container.keywords or not items:
        return None
    if kind == "nn.ModuleList" and isinstance(items[0], ast.List):
        items = items[0].elts
    return _of_items(target.attr, kind, items)


def _of_items(name: str, kind: str, items: list[ast.expr]) -> _Row | None:
    """Return the row that the items of a container are."""
    first = items[0].value if isinstance(items[0], ast.Starred) else items[0]
    if len(items) == 1 and isinstance(first, ast.ListComp):
        count = _counted(first)
        return _Row(name, kind, first.elt, count, 1) if count and _is_block(first.elt) else None  # type: ignore[arg-type]
    if len(items) < LEAST or not isinstance(first, ast.Call) or not _is_block(first):
        return None
    if len({ast.dump(item) for item in items}) == 1:
        return _Row(name, kind, first, Spot(len(items)), len(items))
    return _behind_first(name, kind, first, items[1:])


def _is_block(tree: ast.expr) -> bool:
    """True for the call of a class of the file."""
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)


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
    if len(loop.body) > 1 or not isinstance(inner, ast.Assign) or not isinstance(layer_call := inner.value, ast.Call):
        return False
    names = [loop.target, layer_call.func, *inner.targets, *layer_call.args[:1]]
    layer, called, result, operand, *_ = [
        node.id if isinstance(node, ast.Name) else "" for node in (*names, layer_call)
    ]
    return bool(result) and layer == called and result == operand


def _are_equal(module: ModuleDef, path: str, row: _Row) -> bool:
    """Return True if the shapes in all blocks of a row are known, and the same, and no block is tied to another."""
    around: ModulePath = (*filter(None, path.split(".")), row.name)
    if any(member.path[: len(around)] == around for tie in module.ties for member in (tie.kept, tie.tied)):
        return False
    shapes = _shapes(module, around, row.number)
    if row.first is not None:
        before = shapes.pop(0)
        if not before or not shapes[0] or before[-1] != shapes[0][-1]:
            return False  # the second block makes another shape of what it takes
    first, *others = shapes
    return bool(first) and None not in first and all(other == first for other in others)


def _shapes(module: ModuleDef, around: ModulePath, count: int) -> list[list[tuple[Dim, ...] | None]]:
    """Return the shapes of the values that each block of a row makes, as far as they are known."""
    shapes: dict[str, list[tuple[Dim, ...] | None]] = {str(i): [] for i in range(count)}
    for statement in flattened(module.body):
        if isinstance(statement, Assign):
            paths = (*(member.path for member in members(statement.value)), statement.scope)
            for block in {path[len(around)] for path in paths if path[: len(around)] == around != path}:
                infos = [module.infos.get(target) for target in statement.targets]
                shapes.get(block, []).extend(info.shape if info else None for info in infos)
    return [*shapes.values()]


ATTENTION = "F.scaled_dot_product_attention"
SPLIT, PACKED, ORDERED, HEADED, ATTENDED, BEHIND, ORDINARY = "split packed ordered headed attended behind -".split()
# what a method makes of a value whose axes are those of heads, with the arguments that it must have
STEPS = {
    (SPLIT, "transpose", (1, 2)): HEADED,
    (PACKED, "permute", (2, 0, 3, 1, 4)): ORDERED,
    (ORDERED, "unbind", (0,)): HEADED,  # each of the three
    (ATTENDED, "transpose", (1, 2)): BEHIND,
    (BEHIND, "flatten", (2,)): ORDINARY,
}
OPTIONS = {"is_causal", "scale", "dropout_p", "attn_mask"}  # of attention, which do not depend on the number


class _Seen(Exception):
    """Something else depends on the number of heads."""


@dataclass
class _Class:
    """Follows the heads through the methods of a class; `numbers`: where their number is written."""

    numbers: list[ast.Constant]
    kinds: dict[str, str]

    def run(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
                self.children(statement)
                continue
            kind = self.kind(statement.value)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            names = targets[0].elts if targets and isinstance(targets[0], ast.Tuple) else targets
            if kind != ORDINARY and not (names and all(isinstance(name, ast.Name) for name in names)):
                raise _Seen
            self.kinds.update((name.id, kind) for name in names if isinstance(name, ast.Name))

    def kind(self, tree: ast.AST) -> str:
        """Return what an expression is."""
        if isinstance(tree, ast.Name):
            return self.kinds.get(tree.id, ORDINARY)
        if isinstance(tree, ast.Call) and dotted(tree.func) == ATTENTION:
            if [self.kind(one) for one in tree.args] != [HEADED] * 3 or {k.arg for k in tree.keywords} - OPTIONS:
                raise _Seen
            self.children(*tree.keywords)
            return ATTENDED
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and is_method(tree):
            before = self.kind(tree.func.value)
            if before != ORDINARY:
                return _moved(before, tree.func.attr, tree)
            if tree.func.attr == "unflatten":
                return self.split(tree)
        self.children(tree)
        return ORDINARY

    def split(self, tree: ast.Call) -> str:
        """`x.unflatten(-1, (4, -1))`, or with three in one, `(3, 4, -1)`."""
        self.children(*tree.args)
        match [value_of(one) for one in tree.args if is_literal(one)]:
            case [-1, (int(), -1)]:
                kind = SPLIT
            case [-1, (3, int(), -1)]:
                kind = PACKED
            case _:
                return ORDINARY
        self.numbers.append(tree.args[1].elts[-2])  # type: ignore[attr-defined]
        return kind

    def children(self, *trees: ast.AST) -> None:
        """Go on below some trees, in which no part may be one of heads."""
        for tree in trees:
            if isinstance(tree, ast.stmt):
                before = {name for name, kind in self.kinds.items() if kind != ORDINARY}
                if before & {node.id for node in walk(tree) if isinstance(node, ast.Name)}:
                    raise _Seen
            elif any(self.kind(inner) != ORDINARY for inner in ast.iter_child_nodes(tree)):
                raise _Seen


def _moved(before: str, method: str, tree: ast.Call) -> str:
    """Return what a method makes of a value whose axes are those of heads."""
    axes = tuple(value_of(one) for one in tree.args if is_integer(one))
    after = STEPS.get((before, method, axes))
    if after is None or len(axes) < len(tree.args) or tree.keywords:
        raise _Seen
    return after


def with_heads(classes: Sequence[ClassTree], module: ModuleDef) -> tuple[list[ClassTree], list[Argument]]:
    """Return the classes, and an argument for each number of heads."""
    rewritten, arguments, is_open = [], [], _are_open(module)
    for tree in classes:
        numbers = _numbers(tree) if is_open else []
        if numbers and len({number.value for number in numbers}) == 1:
            number = Spot(numbers[0].value)
            rewritten.append(_with_stored(tree, HEADS, number, numbers))
            arguments.append(Argument(HEADS, number.value, {id(number): number.value}, 1))  # type: ignore[arg-type, dict-item]
        else:
            rewritten.append(tree)
    return rewritten, arguments


def _are_open(module: ModuleDef) -> bool:
    """True if attention always has four axes, batch and heads first, and no mask has one of heads."""

    def shape(tree: ast.expr) -> tuple[Dim, ...]:
        return (module.infos.get(tree.value, Info()).shape or ()) if isinstance(tree, Ref) else ()

    for attention in _attentions(module):
        masks = [shape(k.value) for k in attention.keywords if k.arg == "attn_mask"]
        if any(len(shape(operand)) != 4 for operand in attention.args):
            return False
        if any(not mask or (len(mask) > 2 and mask[-3] != 1) for mask in masks):
            return False
    return True


def attentions(module: ModuleDef) -> int:
    """Return how often a network attends: also where its layers multiply with integers, and are none of torch's."""
    return sum(1 for _ in _attentions(module))


def _attentions(module: ModuleDef) -> Iterator[ast.Call]:
    for node in (node for statement in module.body for tree in expressions(statement) for node in walk(tree)):
        if isinstance(node, ast.Call) and dotted(node.func) == ATTENTION:
            yield node


def _numbers(tree: ClassTree) -> list[ast.Constant]:
    """Return where a class has the number of heads, if nothing else depends on it."""
    nodes = [node for part in (*tree.setup, *tree.body) for node in walk(part)]
    attends = any(isinstance(node, ast.Call) and dotted(node.func) == ATTENTION for node in nodes)
    followed = _Class([], {})
    if not attends or tree.own or any(isinstance(node, ast.Attribute) and node.attr == HEADS for node in nodes):
        return []
    try:
        followed.run(tree.body)
    except _Seen:
        return []
    return followed.numbers


def _with_stored(tree: ClassTree, name: str, value: ast.expr, written: Iterable[ast.expr]) -> ClassTree:
    """Return a class that stores a value and reads it where it was written."""
    places = {id(one) for one in written}
    own = ast.Attribute(SELF, name, ast.Load())
    body = [rewrite(statement, lambda node: own if id(node) in places else None) for statement in tree.body]
    target = ast.Attribute(SELF, name, ast.Store())
    return replace(tree, body=body, setup=[ast.Assign([target], value), *tree.setup])


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
    written_in = {tree.name: [*_written(tree)] for tree in classes}
    counts = Counter(numbers for written in written_in.values() for _, numbers in written)
    rewritten: list[ClassTree] = []
    spots: dict[Size, int] = {}
    for tree in classes:
        written = written_in[tree.name]
        name = CHANNELS if written and is_map(written[0][1]) else STORED
        if len(written) == 1 and counts[written[0][1]] == 1 and not _has(tree, name):
            place, numbers = written[0]
            sizes = [Spot(one) for one in (numbers[1:2] if name == CHANNELS else numbers)]
            spots.update((part_of(numbers, i), id(spot)) for i, spot in enumerate(sizes))
            value = sizes[0] if name == CHANNELS else ast.List([*sizes], ast.Load())
            tree = _with_stored(tree, name, value, [place])
        rewritten.append(tree)
    return rewritten, spots


def _has(tree: ClassTree, name: str) -> bool:
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
