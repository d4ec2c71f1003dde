"""Symbolic dims and devices as expressions, `x.shape[1]`, `x.device`; and names for sizes.

`resolve_sizes`: goes in a scope whose expressions hold `SizeOf` and `DeviceOf`, comes out the scope without them. A dim
that no tensor of the class has becomes an `int` argument of its `forward`, which the caller must give.

`unpack_shapes`: comes out the scope with a local variable for each size that is used more than once, or that outlives
its tensor: `batch, length, _ = x.shape`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import (
    Assign,
    Input,
    Loop,
    ModuleDef,
    Statement,
    assigned,
    blocks,
    change_own,
    expressions,
    used,
)
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, literal, quote, refs, rewrite, tensor_of, walk
from onnxgen.common.names import FileText, identifier
from onnxgen.shapes.dims import Call, Dim, Monomial, Sym, Symbol, symbol, symbols
from onnxgen.shapes.info import Info
from onnxgen.structure.nesting import replace_in
from onnxgen.structure.scopes import Scope


def resolve_sizes(scope: Scope, infos: dict[str, Info]) -> list[SizeOf | DeviceOf]:
    """Resolve every size and device in a scope; return what the caller must give for the added arguments."""
    return _Sizes(scope, infos).run()


def shape_item(tree: ast.AST) -> tuple[str, int] | None:
    """Return (x, i) if an expression is `x.shape[i]`, else None."""
    if isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Constant):
        of, axis = tree.value, tree.slice.value
        if isinstance(of, ast.Attribute) and of.attr == "shape" and isinstance(of.value, Ref):
            return (of.value.value, axis) if isinstance(axis, int) and axis >= 0 else None
    return None


def _is_tensor(facts: Info) -> bool:
    """True for a value that is certainly a tensor; if nothing is known about it, it may be a Python number."""
    return facts.kind == "tensor" and (facts.shape is not None or facts.dtype is not None)


class _Sizes:
    """Resolves the sizes of one scope.

    Attributes:
        where: for each dim, the first tensor that has it, and the axis.
        asked: how often each dim is used.
        tensors: the tensors that exist at this point of the code.
        added: the arguments added for dims.
        device: the argument added for the device.
    """

    def __init__(self, scope: Scope, infos: dict[str, Info]) -> None:
        self.scope, self.infos = scope, infos
        self.where: dict[Sym, tuple[str, int]] = {}
        dims = [node.dim for tree in scope.expressions() for node in walk(tree) if isinstance(node, SizeOf)]
        self.asked = Counter(part for dim in dims for part in {dim, *map(symbol, symbols(dim))})
        self.tensors: list[str] = []
        self.added: dict[Sym, Input] = {}
        self.device: Input | None = None

    def run(self) -> list[SizeOf | DeviceOf]:
        for argument in self.scope.inputs:
            self._see(argument.value)
        self._block(self.scope.body)
        self.scope.outputs = [self._expression(o) for o in self.scope.outputs]
        self.scope.inputs.extend(self.added.values())
        sizes: list[SizeOf | DeviceOf] = [SizeOf(dim) for dim in self.added]
        if self.device is None:
            return sizes
        self.scope.inputs.append(self.device)
        return [*sizes, DeviceOf()]

    def _see(self, name: str) -> None:
        facts = self.infos.get(name, Info())
        if not _is_tensor(facts):
            return
        if facts.dtype != ir.DataType.STRING:
            self.tensors.append(name)
        for axis, dim in enumerate(facts.shape or ()):
            if isinstance(dim, Sym):
                self.where.setdefault(dim, (name, axis))

    def _block(self, block: list[Statement]) -> None:
        for statement in block:
            change_own(statement, self._expression)
            for inner in blocks(statement):
                where, tensors = dict(self.where), list(self.tensors)  # values of a nested block end with it
                for name in statement.turn if isinstance(statement, Loop) else ():
                    self._see(name)
                self._block(inner)
                self.where, self.tensors = where, tensors
            for name in statement.targets:
                self._see(name)

    def _expression(self, tree: Any) -> ast.expr:
        changed: ast.expr = tree
        if not any(isinstance(n, (SizeOf, DeviceOf)) for n in walk(tree)):
            return changed
        near = [r for r in refs(tree) if _is_tensor(self.infos.get(r, Info()))]

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, SizeOf):
                return self._size(node.dim, near)
            if isinstance(node, DeviceOf):
                return self._device(near)
            return None

        changed = rewrite(tree, change)
        for node in walk(changed):
            if isinstance(node, ast.keyword) and node.arg == "size":
                node.value = self._spatial(node.value)
        return changed

    def _spatial(self, sizes: ast.expr) -> ast.expr:
        """Return `x.shape[2:]` if these are the sizes of all axes of a tensor from axis 2 on."""
        items = [shape_item(e) for e in sizes.elts] if isinstance(sizes, ast.Tuple) else []
        if len(items) < 2 or items[0] is None:
            return sizes
        name, start = items[0]
        rank = self.infos.get(name, Info()).rank
        if rank is None or items != [(name, axis) for axis in range(start, rank)]:
            return sizes
        return quote("x.shape[i:]", x=Ref(name), i=start)

    def _device(self, near: list[str]) -> ast.expr:
        """Return the device of a tensor that exists here, else of a parameter, else an added argument."""
        near = [name for name in near if self.infos[name].dtype != ir.DataType.STRING]
        name = near[0] if near else self.tensors[0] if self.tensors else None
        if name is not None:
            return quote("x.device", x=Ref(name))
        for member in self.scope.members:
            if member.kind != "module" or member.keys:
                key = next(iter(member.keys), "")
                return quote("x.device", x=tensor_of(MemberRef(member), key))
        if not self.scope.path:  # the network has nothing that could be on another device
            return ast.Constant("cpu")
        if self.device is None:
            self.infos["device."] = Info(kind="device")
            self.device = Input("device.", "torch.device")
        return Ref(self.device.value)

    def _size(self, dim: Sym, near: list[str]) -> ast.expr:
        direct = self._direct(dim, near)
        if direct is not None:
            return direct
        terms = [self._term(monomial, coefficient, near) for monomial, coefficient in dim.terms]
        first = next((term for term in terms if term[0] > 0), terms[0])  # `64 - n`, not `-n + 64`
        total = first[1] if first[0] > 0 else ast.UnaryOp(ast.USub(), first[1])
        for sign, term in [term for term in terms if term is not first]:
            total = ast.BinOp(total, ast.Add() if sign > 0 else ast.Sub(), term)
        return total

    def _direct(self, dim: Sym, near: list[str]) -> ast.expr | None:
        """Return `x.shape[i]` of a tensor that has exactly this dim.

        A dim that is used once is read from a tensor of the same statement. Else it is always read from the first
        tensor that has it, so that it can have a name (`unpack_shapes`).
        """
        if self.asked[dim] < 2 or dim not in self.where:
            for name in near:
                for axis, other in enumerate(self.infos[name].shape or ()):
                    if other == dim:
                        return quote("x.shape[i]", x=Ref(name), i=axis)
        if dim in self.where:
            name, axis = self.where[dim]
            return quote("x.shape[i]", x=Ref(name), i=axis)
        return None

    def _term(self, monomial: Monomial, coefficient: int, near: list[str]) -> tuple[int, ast.expr]:
        """Return the sign and the expression of one term of a polynomial."""
        product: list[ast.expr] = []
        if abs(coefficient) != 1 or not monomial:
            product.append(ast.Constant(abs(coefficient)))
        for atom, power in monomial:
            base = self._atom(atom, near)
            product.append(base if power == 1 else ast.BinOp(base, ast.Pow(), ast.Constant(power)))
        tree = product[0]
        for factor in product[1:]:
            tree = ast.BinOp(tree, ast.Mult(), factor)
        return 1 if coefficient > 0 else -1, tree

    def _atom(self, atom: Symbol | Call, near: list[str]) -> ast.expr:
        alone = Sym((((((atom, 1),)), 1),))
        direct = self._direct(alone, near)
        if direct is not None:
            return direct
        if isinstance(atom, Symbol):
            argument = self.added.setdefault(alone, Input(f"size.{atom.name}", "int"))
            self.infos[argument.value] = Info(kind="int")
            return Ref(argument.value)
        args = [self._size(a, near) if isinstance(a, Sym) else literal(a) for a in atom.args]
        if atom.function in ("floordiv", "mod"):
            return ast.BinOp(args[0], ast.FloorDiv() if atom.function == "floordiv" else ast.Mod(), args[1])
        return ast.Call(ast.Name(atom.function, ast.Load()), args, [])


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
    for value, axis in filter(None, map(shape_item, scope.walk())):
        asked.setdefault(value, Counter())[axis] += 1
    if not asked:
        return
    lives = _Lifetimes(scope)
    unpackings: dict[int, list[Statement]] = {}
    names: dict[tuple[str, int], str] = {}
    for value, axes in asked.items():
        if _are_worth(axes, module.infos.get(value, Info()).shape, value in lives.arguments and lives.outlives(value)):
            if (at := lives.first.get(value)) is not None:
                unpackings.setdefault(at, []).append(_unpacking(scope, module, value, sorted(axes), names))

    def change(node: ast.AST) -> ast.expr | None:
        item = shape_item(node)
        return Ref(names[item]) if item in names else None

    for statement in scope.body:
        replace_in(statement, change)
    scope.outputs = [rewrite(output, change) for output in scope.outputs]
    body = [s for i, statement in enumerate(scope.body) for s in (*unpackings.get(i, ()), statement)]
    scope.body = [*body, *unpackings.get(len(scope.body), ())]


def _are_worth(axes: Counter[int], shape: tuple[Dim, ...] | None, outlives: bool) -> bool:
    """True if sizes of a tensor get names. A number is read in place; of a tensor of unknown rank, all are."""
    if shape is None or max(axes) >= len(shape):
        return False
    return outlives or (axes.total() > 1 and any(isinstance(shape[axis], Sym) for axis in axes))


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
        for i, statement in enumerate([*scope.body, Assign((), ast.Tuple(scope.outputs, ast.Load()))]):
            sizes = Counter(v for e in expressions(statement) for v, _ in _sizes(e))
            uses = Counter(r for e in expressions(statement) for r in refs(e))
            self.last.update((name, i) for name in used(statement) if uses[name] > sizes[name])
            for name in sizes:
                self.asks.setdefault(name, i)
        assignments = Counter(name for statement in scope.body for name in assigned(statement))
        once = _assigned_once(scope.body, assignments)
        self.first = dict.fromkeys(self.arguments - assignments.keys(), 0)
        self.first |= {name: i for name, i in self.asks.items() if name in once}

    def outlives(self, value: str) -> bool:
        """True if a size is used after the last use of the tensor, which is not an argument of the network."""
        if self.is_root and value in self.arguments:
            return False
        return value in self.last and self.last[value] < self.asks[value]


def _assigned_once(body: list[Statement], assignments: Counter[str]) -> set[str]:
    """Return the values that a body makes itself; what a loop or a branch hands on is assigned more than once."""
    return {name for statement in body for name in statement.targets if assignments[name] == 1}


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
