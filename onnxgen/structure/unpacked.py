"""Sizes that a class asks for more than once get names: `batch, length, _ = x.shape`."""

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

# axes of tensors of each rank, where the file has no names for the dims
AXES = {2: "bn", 3: "bnc", 4: "bchw", 5: "bcdhw"}
# the last three axes of rank 4 in attention; keys may be transposed, but the size of a head is a number in every file
HEADS, PAIRS = ("heads", "length", "length"), ("heads", "queries", "keys")
OF_ROLE = {**dict.fromkeys("qkv", HEADS), **dict.fromkeys(("scores", "mask", "bias"), PAIRS)}
# what exporters call dims that have no name
_NOISE = re.compile(r"^(s\d+|u\d+|unk.*|dim.*|.*dynamic_axes.*|dynamicdimension.*|.*_dim_\d+|d\d+|x_?\d*)$")


def unpack_shapes(scope: Scope, module: ModuleDef) -> None:
    """Name the sizes of a tensor where two are used or one is used twice, or where nothing else needs the tensor."""
    trees = [tree for statement in scope.body for tree in expressions(statement)] + scope.outputs
    asked: dict[str, Counter[int]] = {}
    for value, axis in (size for tree in trees for size in _sizes(tree)):
        asked.setdefault(value, Counter())[axis] += 1
    if not asked:
        return
    places = _Places(scope)
    made: dict[int, list[Statement]] = {}
    names: dict[tuple[str, int], str] = {}
    for value, axes in asked.items():
        shape = module.infos.get(value, Info()).shape
        if shape is None or max(axes) >= len(shape):  # of unknown rank
            continue
        if value in places.first and (axes.total() > 1 or places.outlives(value)):
            made.setdefault(places.first[value], []).append(_unpacking(scope, module, value, sorted(axes), names))

    def change(node: ast.AST) -> ast.expr | None:
        found = _size(node)
        return Ref(names[found]) if found in names else None

    for statement in scope.body:
        replace_in(statement, change)
    scope.outputs = [rewrite(output, change) for output in scope.outputs]
    scope.body = [s for i, old in enumerate([*scope.body, None]) for s in (*made.get(i, ()), old) if s is not None]


def _sizes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every `x.shape[i]` in an expression."""
    for node in walk(tree):
        found = _size(node)
        if found is not None:
            yield found


def _size(node: ast.AST) -> tuple[str, int] | None:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        of = node.value
        if isinstance(of, ast.Attribute) and of.attr == "shape" and isinstance(of.value, Ref):
            axis = node.slice.value
            return (of.value.value, axis) if isinstance(axis, int) and axis >= 0 else None
    return None


class _Places:
    """Where values of a scope are made and used; `first`: the statement before which a value's shape can be unpacked.

    Only of arguments, and of values that are assigned once, outside of loops and branches.
    """

    def __init__(self, scope: Scope) -> None:
        self.is_root = not scope.path
        self.arguments = {a.value for a in scope.inputs}
        self.last: dict[str, int] = {}  # the last statement that uses a value, but for its sizes
        self.asks: dict[str, int] = {}  # the first statement that asks for a size
        made = Counter(name for statement in scope.body for name in assigned(statement))
        top = {name for s in scope.body if isinstance(s, Assign) for name in s.targets}
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
        """A size is asked for when nothing else needs the tensor; no matter of the root's arguments."""
        if self.is_root and value in self.arguments:
            return False
        return value in self.last and self.last[value] < self.asks[value]


def _unpacking(
    scope: Scope, module: ModuleDef, value: str, axes: list[int], names: dict[tuple[str, int], str]
) -> Statement:
    """`batch, length, _ = x.shape`, or `length = x.shape[1]`; `names` gets the sizes' values."""
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
    """A new value, a size called `name`."""
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
    """The dim's name in the file, else what the axis is in a value of this role, else the axis's letter by custom."""
    dim = shape[axis]
    if isinstance(dim, Sym):
        names = list(symbols(dim))
        if len(names) == 1 and dim == symbol(names[0]) and not _NOISE.match(names[0].lower()):
            return identifier(names[0])
    if role in OF_ROLE and len(shape) == 4 and axis > 0 and isinstance(dim, Sym):
        return OF_ROLE[role][axis - 1]
    letters = AXES.get(len(shape))
    return letters[axis] if letters else f"size{axis}"
