"""Named sizes: `batch, length, _ = x.shape`.

Goes in: a scope whose sizes are `x.shape[i]`. Comes out: the scope with a local variable for each size that is used
more than once, or that outlives its tensor.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from onnxgen.code.module_def import Assign, ModuleDef, Statement, assigned, expressions, used
from onnxgen.code.quote import Ref, quote, refs, rewrite, walk
from onnxgen.common.names import FileText, identifier
from onnxgen.shapes.dims import Dim, Sym, symbol, symbols
from onnxgen.shapes.info import Info
from onnxgen.structure.copies import replace_in
from onnxgen.structure.scopes import Scope
from onnxgen.structure.sizes import shape_item

# names of the axes of tensors of each rank, if the file does not name the dims
AXES = {2: "bn", 3: "bnc", 4: "bchw", 5: "bcdhw"}
# the last three axes of rank 4 in attention; keys may be transposed, but the size of a head is a number in every file
HEADS, PAIRS = ("heads", "length", "length"), ("heads", "queries", "keys")
OF_ROLE = {**dict.fromkeys("qkv", HEADS), **dict.fromkeys(("scores", "mask", "bias"), PAIRS)}
# names that exporters give to unnamed dims
_NOISE = re.compile(r"^(s\d+|u\d+|unk.*|dim.*|.*dynamic_axes.*|dynamicdimension.*|.*_dim_\d+|d\d+|x_?\d*)$")


def unpack_shapes(scope: Scope, module: ModuleDef) -> None:
    """Name the sizes of a tensor if two are used, or one is used twice, or nothing else needs the tensor any more."""
    asked: dict[str, Counter[int]] = {}
    for value, axis in (size for tree in scope.expressions() for size in _sizes(tree)):
        asked.setdefault(value, Counter())[axis] += 1
    if not asked:
        return
    lives = _Lifetimes(scope)
    made: dict[int, list[Statement]] = {}
    names: dict[tuple[str, int], str] = {}
    for value, axes in asked.items():
        shape = module.infos.get(value, Info()).shape
        if shape is None or max(axes) >= len(shape):  # of unknown rank
            continue
        is_asked = axes.total() > 1 and any(isinstance(shape[axis], Sym) for axis in axes)  # a number is read in place
        if value in lives.first and (is_asked or (value in lives.arguments and lives.outlives(value))):
            made.setdefault(lives.first[value], []).append(_unpacking(scope, module, value, sorted(axes), names))

    def change(node: ast.AST) -> ast.expr | None:
        found = shape_item(node)
        return Ref(names[found]) if found in names else None

    for statement in scope.body:
        replace_in(statement, change)
    scope.outputs = [rewrite(output, change) for output in scope.outputs]
    scope.body = [s for i, old in enumerate([*scope.body, None]) for s in (*made.get(i, ()), old) if s is not None]


def _sizes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (x, i) for every `x.shape[i]` in an expression."""
    return filter(None, map(shape_item, walk(tree)))


class _Lifetimes:
    """The statements that use the values of a scope.

    Attributes:
        last: the last statement that uses a value for more than its sizes.
        asks: the first statement that uses a size of a value.
        first: the statement before which the shape of a value can be unpacked. Only for arguments, and for values that
            are assigned once, outside loops and branches.
    """

    def __init__(self, scope: Scope) -> None:
        self.is_root = not scope.path
        self.arguments = {a.value for a in scope.inputs}
        self.last: dict[str, int] = {}
        self.asks: dict[str, int] = {}
        made = Counter(name for statement in scope.body for name in assigned(statement))
        # of these, what a loop or a branch hands on is assigned more than once
        top = {name for statement in scope.body for name in statement.targets}
        for i, statement in enumerate([*scope.body, Assign((), ast.Tuple(scope.outputs, ast.Load()))]):
            sizes = Counter(v for e in expressions(statement) for v, _ in _sizes(e))
            uses = Counter(r for e in expressions(statement) for r in refs(e))
            for name in used(statement):
                if uses[name] > sizes[name]:
                    self.last[name] = i
            for name in sizes:
                self.asks.setdefault(name, i)
        self.first = {name: 0 for name in self.arguments if not made[name]}
        self.first |= {name: i for name, i in self.asks.items() if name in top and made[name] == 1}

    def outlives(self, value: str) -> bool:
        """True if a size is used after the last use of the tensor, which is not an argument of the network."""
        if self.is_root and value in self.arguments:
            return False
        return value in self.last and self.last[value] < self.asks[value]


def _unpacking(
    scope: Scope, module: ModuleDef, value: str, axes: list[int], names: dict[tuple[str, int], str]
) -> Statement:
    """Return `batch, length, _ = x.shape`, or `length = x.shape[1]`; add the values of these sizes to `names`."""
    shape = module.infos[value].shape or ()
    for axis in axes:
        names[value, axis] = _fresh(module, f"{value}.shape[{axis}]", _name(shape, axis, module.roles.get(value, "")))
    if len(axes) == 1:
        one = quote("x.shape[i]", x=Ref(value), i=axes[0])
        return Assign((names[value, axes[0]],), one, scope.path)
    unused = (_fresh(module, f"{value}.shape[{i}]", "") for i in range(len(shape)))
    targets = tuple(names.get((value, i)) or other for i, other in enumerate(unused))
    return Assign(targets, quote("x.shape", x=Ref(value)), scope.path)


def _fresh(module: ModuleDef, wanted: str, name: str) -> str:
    """Return a new value, a size with this name."""
    value, n = wanted, 1
    while value in module.infos:
        n += 1
        value = f"{wanted}%{n}"
    module.infos[value] = Info(kind="int")
    module.hints[value] = FileText(name)
    if name:
        module.roles[value] = name
    return value


def _name(shape: tuple[Dim, ...], axis: int, role: str) -> str:
    """Return the dim's name in the file, else that of the axis in a value of this role, else the usual letter."""
    dim = shape[axis]
    if isinstance(dim, Sym):
        names = list(symbols(dim))
        if len(names) == 1 and dim == symbol(names[0]) and not _NOISE.match(names[0].lower()):
            return identifier(names[0])
    if role in OF_ROLE and len(shape) == 4 and axis > 0 and isinstance(dim, Sym):
        return OF_ROLE[role][axis - 1]
    letters = AXES.get(len(shape))
    return letters[axis] if letters else f"size{axis}"
