"""Sizes of the file's example, read from another value: the batch size, and sizes of resized maps.

Goes in: the flat body. Comes out: the body without these numbers.

- `free_rows`: a tensor that is made of stored ones has the number of rows of the file's example,
  `cls_token.expand(2, -1, -1)`. It gets as many rows as the value that it is joined with or added
  to: `x.shape[0]`. No other number of rows would fit there, so this is right for every batch.
- `resize_as_joined`: maps are resized to the size of an earlier value with which the result, or what is computed of it,
  is concatenated or added to: `size=skip.shape[2:]`, not `size=(9, 11)`. No other size would fit there. Maps that are
  resized in the same way by factors are, too, if their factors differ: so the stages of a decoder are alike.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from operator import eq

import numpy as np

from onnxgen.code.module_def import Assign, Loop, Statement, blocks, expressions
from onnxgen.code.quote import MemberRef, Ref, SizeOf, call, quote, refs, rewrite, value_of, walk
from onnxgen.code.torch_api import ACTIVATIONS, CELLS, CONVOLUTIONS, NORMS, TRANSPOSED, function_of
from onnxgen.common.names import ModulePath
from onnxgen.lowering.roles import called, is_number, layer_of
from onnxgen.shapes.info import Info

MAX_STEPS_BACK = 12  # statements between a value and an earlier one with the same rows
FILLS = frozenset("new_zeros new_ones new_full new_empty zeros ones full empty".split())
LIKE = {"new_zeros": "torch.zeros_like", "zeros": "torch.zeros_like", "new_ones": "torch.ones_like"}
# layers and functions whose result has a row for each row of their first operand
ROW_LAYERS = {"nn.Linear", *NORMS, *ACTIVATIONS.values()}
ROW_FUNCTIONS = {name.rpartition(".")[2] for name in ACTIVATIONS} | set(
    "exp log sqrt sin cos abs clamp float to contiguous softmax log_softmax scatter_add index_add".split()
)


def free_rows(
    block: list[Statement], infos: Mapping[str, Info], inputs: Iterable[str], after: Iterable[str] = ()
) -> None:
    """Write the numbers of rows in a block, its nested blocks included.

    `inputs`: the values that exist before it. `after`: those that are used after it.
    """
    rows = _Rows(infos, inputs)
    for name in after:
        rows.uses[name].append(None)
    rows.run(block)


class _Rows:
    """Knows the statements of one block.

    Attributes:
        place: where each value is made: the index of the statement, -1 before the block.
        uses: the statements that use each value; None: the value is used in a nested block or by the caller.
        seen: the modules that have each value at hand.
    """

    def __init__(self, infos: Mapping[str, Info], inputs: Iterable[str]) -> None:
        self.infos = infos
        self.place = dict.fromkeys(inputs, -1)
        self.makers: dict[str, Assign] = {}
        self.uses: dict[str, list[Assign | None]] = defaultdict(list)
        self.seen: dict[str, set[ModulePath]] = defaultdict(set, {name: {()} for name in self.place})

    def run(self, block: list[Statement]) -> None:
        for i, statement in enumerate(block):
            for inner in blocks(statement):
                turn = statement.turn if isinstance(statement, Loop) else ()
                free_rows(inner, self.infos, [*self.place, *turn], statement.targets)
            self._note(statement, i)
        for i, statement in enumerate(block):
            if isinstance(statement, Assign) and len(statement.targets) == 1:
                statement.value = self._freed(statement, i)

    def _note(self, statement: Statement, at: int) -> None:
        is_plain = isinstance(statement, Assign)
        used = {name for tree in expressions(statement) for name in refs(tree)}
        for name in used:
            self.uses[name].append(statement if isinstance(statement, Assign) else None)
            makers = self.makers[name].scope if name in self.makers else ()
            common = sum(takewhile(bool, map(eq, makers, statement.scope)))
            for path in (makers, statement.scope):
                self.seen[name].update(path[:n] for n in range(common, len(path) + 1))
        for name in statement.targets:
            if not is_plain:  # carried into it
                self.uses[name].append(None)
            if used:  # what is made of stored tensors has no batch
                self.place[name] = at
            if isinstance(statement, Assign):
                self.makers[name] = statement

    def _freed(self, statement: Assign, at: int) -> ast.expr:
        """Return the expression of a statement without the example's number of rows, if that is certain."""
        target, value = statement.targets[0], statement.value
        name, operands = called(value)
        sizes = _sizes_of(value) if name == "expand" or name in FILLS else []
        rows = self._rows(target)
        if rows < 2 or not sizes or not isinstance(sizes[0], ast.Constant) or sizes[0].value != rows:
            return value
        partner = next(self._partners(target, at, statement.scope, MAX_STEPS_BACK), "")
        if not partner:
            return value
        if self.infos[partner].shape == self.infos[target].shape:
            if name in LIKE and self.infos[partner].dtype == self.infos[target].dtype:
                return call(LIKE[name], Ref(partner))
            if name == "expand" and all(_number(size) == -1 for size in sizes[1:]):
                return quote("x.expand_as(y)", x=operands[0], y=Ref(partner))
        first = sizes[0]
        freed: ast.expr = rewrite(value, lambda n: quote("x.shape[0]", x=Ref(partner)) if n is first else None)
        return freed

    def _rows(self, name: str) -> int:
        """Return the number of rows of a tensor, 0 if it is unknown."""
        shape = self.infos.get(name, Info()).shape
        return shape[0] if shape and isinstance(shape[0], int) else 0

    def _partners(self, name: str, at: int, scope: ModulePath, steps: int) -> Iterator[str]:
        """Yield earlier values with the rows that all uses of a value need; nothing if one use does not tell."""
        partners: list[str] = []
        for use in self.uses[name] if steps else ():
            beside = [] if use is None else [*self._beside(use, name)]
            here = [earlier for other in beside for earlier in self._earlier(other, at, scope)][:1]
            if not here and use is not None and name in self._sources(use):
                here = [*self._partners(use.targets[0], at, scope, steps - 1)][:1]
            if not here:
                return
            partners += here
        yield from partners

    def _beside(self, use: Assign, name: str) -> Iterator[str]:
        """Yield the values that must have as many rows as `name` in a statement that uses both."""
        value = use.value
        if isinstance(value, ast.BinOp) and not isinstance(value.op, ast.MatMult):
            operands: list[ast.expr] = [value.left, value.right]
        elif isinstance(value, ast.Call) and isinstance(value.func, MemberRef) and _shares_rows(value):
            operands = [tree for arg in value.args for tree in getattr(arg, "elts", [arg])]
        else:
            operands = self._joined(value)
        rank = self.infos.get(name, Info()).rank
        for operand in operands:
            if isinstance(operand, Ref) and operand.value != name and self._rows(operand.value) == self._rows(name):
                if self.infos[operand.value].rank == rank:
                    yield operand.value

    def _joined(self, value: ast.expr) -> list[ast.expr]:
        """Return what an expression joins along another axis than the first."""
        function, operands = called(value)
        if function != "cat" or not isinstance(operands[0], ast.List):
            return []
        ranks = {self.infos.get(tree.value, Info()).rank for tree in operands[0].elts if isinstance(tree, Ref)}
        axis = _axis(value)
        return [] if not axis or None in ranks or -axis in ranks else operands[0].elts

    def _earlier(self, name: str, at: int, scope: ModulePath) -> Iterator[str]:
        """Yield a value that exists before a statement and has the rows of another one, if there is one."""
        for _ in range(MAX_STEPS_BACK):
            if name not in self.place:
                return
            if self.place[name] < at and scope in self.seen[name]:
                yield name
                return
            name = next((s for s in self._sources(self.makers.get(name)) if s in self.place), "")

    def _sources(self, statement: Assign | None) -> list[str]:
        """Return the operands of a statement that have a row for each row of its result."""
        if statement is None or len(statement.targets) != 1:
            return []
        rows, rank = self._rows(statement.targets[0]), self.infos.get(statement.targets[0], Info()).rank
        names = [tree.value for tree in self._by_row(statement.value, rank) if isinstance(tree, Ref)]
        return [name for name in names if rows and self._rows(name) == rows]

    def _by_row(self, value: ast.expr, rank: int | None) -> list[ast.expr]:
        """Return the operands of which an expression of some rank computes row by row."""
        function, operands = called(value)
        if isinstance(value, ast.BinOp) and not isinstance(value.op, ast.MatMult):
            return [side for side in (value.left, value.right) if self._rank(side) == rank]
        if isinstance(value, ast.Call) and isinstance(value.func, MemberRef):
            return value.args[:1] if self._by_rows(value.func.member.layer, value.args) else []
        if function in ROW_FUNCTIONS or (operands and _keeps_rows(function, operands[1:], self._rank(operands[0]))):
            return operands[:1]
        return self._joined(value)

    def _rank(self, tree: ast.expr) -> int:
        return (self.infos.get(tree.value, Info()).rank or 0) if isinstance(tree, Ref) else 0

    def _by_rows(self, layer: str, args: list[ast.expr]) -> bool:
        """True if a layer computes a row for each row of its operand, which it takes with a batch."""
        rank = self._rank(args[0]) if args else 0
        if layer in CONVOLUTIONS | TRANSPOSED:
            return rank == int(layer[-2]) + 2
        return rank > 1 and layer in ROW_LAYERS


def _sizes_of(value: ast.expr) -> list[ast.expr]:
    """Return the sizes that a call of `expand`, or of a fill, is given one by one or as a tuple."""
    args = value.args if isinstance(value, ast.Call) else []
    return args[0].elts if args and isinstance(args[0], ast.Tuple) else args


def _number(tree: ast.expr) -> int | None:
    """Return the int that an expression is, None for any other expression."""
    value = value_of(tree) if is_number(tree) else None
    return value if isinstance(value, int) else None


def _keeps_rows(function: str, args: list[ast.expr], rank: int) -> bool:
    """True for a view that leaves the first axis as it is."""
    axes = [axis % rank for tree in args if (axis := _number(tree)) is not None] if rank > 1 else []
    if function == "permute":
        return axes[:1] == [0]
    if function == "transpose":
        return len(axes) == 2 and 0 not in axes
    return bool(axes) and axes[0] > 0 and function in ("flatten", "unflatten", "unsqueeze")


def _shares_rows(layer: ast.Call) -> bool:
    """True for a layer all of whose operands have one number of rows."""
    assert isinstance(layer.func, MemberRef)
    build = layer.func.member.build
    first = any(keyword.arg == "batch_first" for keyword in getattr(build, "keywords", ()))
    return layer.func.member.layer in CELLS or (function_of(build) == "nn.MultiheadAttention" and first)


RESIZES = ("F.interpolate", "resize_floor")
MAX_STEPS_TO_JOIN = 8  # statements from a resize to where its result is joined
FIRST = 2  # the first axis that is resized


@dataclass
class Resize:
    """A statement that resizes. `size` is the keyword that says how, `to` a value that has the size of the result."""

    statement: Assign
    size: ast.keyword
    to: str

    def __post_init__(self) -> None:
        assert isinstance(self.statement.value, ast.Call)
        self.call = self.statement.value

    @property
    def text(self) -> str:
        dims = [str(node.dim) for node in walk(self.size.value) if isinstance(node, SizeOf)]
        return f"{self.size.arg} {ast.dump(self.size.value)} {dims}"

    @property
    def others(self) -> tuple[str, ...]:
        """The other keywords."""
        return tuple(f"{k.arg} {ast.dump(k.value)}" for k in self.call.keywords if k is not self.size)

    def change(self) -> None:
        """Resize to the size of `to`."""
        size = ast.keyword("size", quote("x.shape[n:]", x=Ref(self.to), n=FIRST))
        keywords = [size if keyword is self.size else keyword for keyword in self.call.keywords]
        self.statement.value = ast.Call(self.call.func, self.call.args, keywords)


def resize_as_joined(block: list[Statement], infos: Mapping[str, Info], inputs: Iterable[str]) -> None:
    """Change the sizes in a block, its nested blocks included. `inputs`: the values that exist before it."""
    place = dict.fromkeys(inputs, -1)
    uses: dict[str, list[Statement]] = defaultdict(list)
    for i, statement in enumerate(block):
        for inner in blocks(statement):
            resize_as_joined(inner, infos, [*place, *(statement.turn if isinstance(statement, Loop) else ())])
        for name in dict.fromkeys(name for tree in expressions(statement) for name in refs(tree)):
            uses[name].append(statement)
        place.update(dict.fromkeys(statement.targets, i))
    alike: dict[tuple[tuple[str, ...], ...], list[Resize]] = defaultdict(list)
    for i, statement in enumerate(block):
        size = _size(statement)
        if isinstance(statement, Assign) and size is not None:
            way, joined = _joined(statement, uses, infos)
            if earlier := [name for name in joined if place.get(name, i) < i]:
                resize = Resize(statement, size, min(earlier, key=lambda name: place[name]))
                alike[resize.others, tuple(way)].append(resize)
    for resizes in alike.values():
        _change(resizes)


def _change(resizes: list[Resize]) -> None:
    """Change resizes that are alike, if they differ in the size, and those to a size in numbers in any case."""
    differ = len({resize.text for resize in resizes}) > 1
    for resize in resizes:
        if differ or _is_literal(resize.size):
            resize.change()


def _size(statement: Statement) -> ast.keyword | None:
    """Return the keyword that says the size of a resize, if a size in pixels gives the same numbers."""
    value = statement.value if isinstance(statement, Assign) and len(statement.targets) == 1 else None
    if not isinstance(value, ast.Call) or function_of(value) not in RESIZES or not isinstance(value.args[0], Ref):
        return None
    for keyword in value.keywords:
        if keyword.arg == "size" or (keyword.arg == "scale_factor" and _is_exact(keyword.value)):
            return keyword
    return None


def _is_exact(factor: ast.expr) -> bool:
    """True for a whole factor: torch divides 1 by it, and a size by another, and both quotients must be equal."""
    value = value_of(factor) if is_number(factor) else None
    return isinstance(value, int) and value > 1 and np.float32(1 / value) == np.float32(1) / np.float32(value)


def _is_literal(size: ast.keyword) -> bool:
    return size.arg == "size" and not any(isinstance(node, (SizeOf, Ref)) for node in walk(size.value))


def _joined(
    resize: Assign, uses: Mapping[str, list[Statement]], infos: Mapping[str, Info]
) -> tuple[list[str], list[str]]:
    """Return the operators from a resize to the join of its result, and what that is joined with; [] if nothing is."""
    name, way = resize.targets[0], list[str]()
    sizes = _sizes(infos, name)
    for _ in range(MAX_STEPS_TO_JOIN):
        user = uses[name][0] if len(uses[name]) == 1 else None
        if not isinstance(user, Assign) or len(user.targets) != 1 or Counter(refs(user.value))[name] != 1:
            break
        way.append(_operator(user.value))
        beside = [*_beside(user.value, name, infos)] if user.scope == resize.scope else []
        if beside:
            return way, beside
        name = user.targets[0]
        if sizes is None or _sizes(infos, name) != sizes:
            break
    return way, []


def _operator(value: ast.expr) -> str:
    return type(value.op).__name__ if isinstance(value, ast.BinOp) else layer_of(value) or called(value)[0]


def _beside(value: ast.expr, name: str, infos: Mapping[str, Info]) -> Iterator[str]:
    """Yield the values that must have the size of `name` where both are operands."""
    function, operands = called(value)
    is_cat = function == "cat" and isinstance(operands[0], ast.List) and _axis(value) == 1
    if is_cat:
        operands = operands[0].elts  # type: ignore[attr-defined]
    elif not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Add, ast.Sub, ast.Mult)):
        return
    else:
        operands = [value.left, value.right]
    mine, rank = _sizes(infos, name), infos.get(name, Info()).rank
    for other in (tree.value for tree in operands if isinstance(tree, Ref) and tree.value != name):
        # what is added may be broadcast; what is concatenated has the size, or the file does not run
        if infos.get(other, Info()).rank == rank and (mine == _sizes(infos, other) if not is_cat else rank):
            yield other


def _axis(cat: ast.expr) -> int | None:
    keywords = cat.keywords if isinstance(cat, ast.Call) else []
    return next((_number(k.value) for k in keywords if k.arg == "dim"), None)


def _sizes(infos: Mapping[str, Info], name: str) -> tuple[object, ...] | None:
    """Return the sizes that a resize changes, None if they are unknown."""
    shape = infos.get(name, Info()).shape
    return None if shape is None or len(shape) <= FIRST or None in shape[FIRST:] else shape[FIRST:]
