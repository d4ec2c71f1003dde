"""Turns symbolic dims and devices in a class's body into what is at hand there: `x.shape[1]`, `x.device`.

A dim that no tensor of the class has becomes an `int` argument of its `forward`, and its caller's problem.
"""

from __future__ import annotations

import ast
from collections import Counter

import onnx_ir as ir

from onnxgen.code.module_def import Assign, If, Input, Loop, Statement, expressions
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, literal, quote, refs, rewrite, tensor_of, walk
from onnxgen.shapes.dims import Call, Monomial, Sym, Symbol, symbol, symbols
from onnxgen.shapes.info import Info
from onnxgen.structure.scopes import Scope


def resolve_sizes(scope: Scope, infos: dict[str, Info]) -> list[SizeOf | DeviceOf]:
    """Resolve every size and device in a scope; returns what the arguments that had to be added stand for."""
    return _Sizes(scope, infos).run()


def _is_tensor(facts: Info) -> bool:
    """A tensor for sure: of a value that nothing is known of, it may be a Python number."""
    return facts.kind == "tensor" and (facts.shape is not None or facts.dtype is not None)


class _Sizes:
    def __init__(self, scope: Scope, infos: dict[str, Info]) -> None:
        self.scope, self.infos = scope, infos
        self.where: dict[Sym, tuple[str, int]] = {}  # the first tensor with such a dim
        self.asked = _asked(scope)
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
            if isinstance(statement, Assign):
                statement.value = self._expression(statement.value)
            elif isinstance(statement, If):
                statement.test = self._expression(statement.test)
                for branch in (statement.then, statement.orelse):
                    self._inner(branch)
            elif isinstance(statement, Loop):
                if statement.iterable is not None:
                    statement.iterable = self._expression(statement.iterable)
                if statement.stop is not None:
                    statement.stop = self._expression(statement.stop)
                self._inner(statement.body, statement.turn)
            else:
                statement.context = self._expression(statement.context)
                self._inner(statement.body)
            for name in statement.targets:
                self._see(name)

    def _inner(self, block: list[Statement], turn: tuple[str, ...] = ()) -> None:
        """A nested block: what it assigns is not at hand after it."""
        where, tensors = dict(self.where), list(self.tensors)
        for name in turn:
            self._see(name)
        self._block(block)
        self.where, self.tensors = where, tensors

    def _expression(self, tree: ast.expr) -> ast.expr:
        if not any(isinstance(n, (SizeOf, DeviceOf)) for n in walk(tree)):
            return tree
        near = [r for r in refs(tree) if _is_tensor(self.infos.get(r, Info()))]

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, SizeOf):
                return self._size(node.dim, near)
            if isinstance(node, DeviceOf):
                return self._device(near)
            return None

        changed: ast.expr = rewrite(tree, change)
        for node in walk(changed):
            if isinstance(node, ast.keyword) and node.arg == "size":
                node.value = self._spatial(node.value)
        return changed

    def _spatial(self, sizes: ast.expr) -> ast.expr:
        """`x.shape[2:]`, if these are the sizes of all axes of a tensor from that one on."""
        places = [_place(e) for e in sizes.elts] if isinstance(sizes, ast.Tuple) else []
        if len(places) < 2 or places[0] is None:
            return sizes
        name, start = places[0]
        rank = self.infos.get(name, Info()).rank
        if rank is None or places != [(name, axis) for axis in range(start, rank)]:
            return sizes
        return quote("x.shape[i:]", x=Ref(name), i=start)

    def _device(self, near: list[str]) -> ast.expr:
        """The device of a tensor at hand, else of a parameter, else an argument: the caller's problem."""
        near = [name for name in near if self.infos[name].dtype != ir.DataType.STRING]
        name = near[0] if near else self.tensors[0] if self.tensors else None
        if name is not None:
            return quote("x.device", x=Ref(name))
        for member in self.scope.members:
            if member.kind != "module" or member.keys:
                key = next(iter(member.keys), "")
                return quote("x.device", x=tensor_of(MemberRef(member), key))
        if not self.scope.path:  # nothing at all that could be moved
            return ast.Constant("cpu")
        if self.device is None:
            self.infos["device."] = Info(kind="device")
            self.device = Input("device.", "torch.device")
        return Ref(self.device.value)

    def _size(self, dim: Sym, near: list[str]) -> ast.expr:
        found = self._direct(dim, near)
        if found is not None:
            return found
        terms = [self._term(monomial, coefficient, near) for monomial, coefficient in dim.terms]
        total = terms[0][1] if terms[0][0] > 0 else ast.UnaryOp(ast.USub(), terms[0][1])
        for sign, term in terms[1:]:
            total = ast.BinOp(total, ast.Add() if sign > 0 else ast.Sub(), term)
        return total

    def _direct(self, dim: Sym, near: list[str]) -> ast.expr | None:
        """`x.shape[i]` of a tensor that has exactly this dim: the first one, but of the same statement if asked once.

        So whoever asks for a dim again finds it at the same place, and it can have a name (see `unpacked`).
        """
        if self.asked[dim] < 2 or dim not in self.where:
            for name in near:
                for axis, other in enumerate(self.infos[name].shape or ()):
                    if other == dim:
                        return quote("x.shape[i]", x=Ref(name), i=axis)
        if dim in self.where:
            name, axis = self.where[dim]
            return quote("x.shape[i]", x=Ref(name), i=axis)
        if dim in self.added:
            return Ref(self.added[dim].value)
        return None

    def _term(self, monomial: Monomial, coefficient: int, near: list[str]) -> tuple[int, ast.expr]:
        """(sign, expression) of one term of a polynomial."""
        sign = 1 if coefficient > 0 else -1
        factors = [ast.Constant(abs(coefficient))] if abs(coefficient) != 1 or not monomial else []
        product: list[ast.expr] = [*factors]
        for atom, power in monomial:
            base = self._atom(atom, near)
            product.append(base if power == 1 else ast.BinOp(base, ast.Pow(), ast.Constant(power)))
        made = product[0]
        for factor in product[1:]:
            made = ast.BinOp(made, ast.Mult(), factor)
        return sign, made

    def _atom(self, atom: Symbol | Call, near: list[str]) -> ast.expr:
        alone = Sym((((((atom, 1),)), 1),))
        found = self._direct(alone, near)
        if found is not None:
            return found
        if isinstance(atom, Symbol):
            return self._argument(alone, atom)
        args = [self._size(a, near) if isinstance(a, Sym) else literal(a) for a in atom.args]
        if atom.function in ("floordiv", "mod"):
            return ast.BinOp(args[0], ast.FloorDiv() if atom.function == "floordiv" else ast.Mod(), args[1])
        return ast.Call(ast.Name(atom.function, ast.Load()), args, [])

    def _argument(self, dim: Sym, atom: Symbol) -> ast.expr:
        if dim not in self.added:
            name = f"size.{atom.name}"
            self.infos[name] = Info(kind="int")
            self.added[dim] = Input(name, "int")
        return Ref(self.added[dim].value)


def _asked(scope: Scope) -> Counter[Sym]:
    """How often the statements of a scope compute with each dim, alone or as a part of another."""
    trees = [*(e for s in scope.body for e in expressions(s)), *scope.outputs]
    sizes = [node.dim for tree in trees for node in walk(tree) if isinstance(node, SizeOf)]
    return Counter(part for dim in sizes for part in {dim, *map(symbol, symbols(dim))})


def _place(size: ast.expr) -> tuple[str, int] | None:
    """(x, i), if a size is `x.shape[i]`."""
    if not isinstance(size, ast.Subscript) or not isinstance(size.slice, ast.Constant):
        return None
    found = refs(size)
    return (found[0], int(size.slice.value)) if found and isinstance(size.slice.value, int) else None
