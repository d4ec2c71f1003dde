"""The sizes of values and members, and how those of one shape are tied."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable

from onnxgen.arguments.sizes import Place, Related, Size, Sizes, places, slot
from onnxgen.code.module_def import Member, ModuleDef, flattened, used
from onnxgen.code.quote import MemberRef, Ref, refs, walk
from onnxgen.code.torch_api import dotted
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info

Operands = list[Sizes]
MAKERS = frozenset("torch.zeros torch.ones torch.empty torch.randn torch.normal torch.full".split())


class Unknown(Exception):
    """No rule describes an expression."""


class Shapes:
    """The shapes of one network. A method that can say nothing raises one of the errors that `rules.relate` expects."""

    def __init__(self, module: ModuleDef) -> None:
        self.infos, self.related = module.infos, Related()
        self.given = {argument.value for argument in module.inputs}
        self.used = {name for statement in flattened(module.body) for name in used(statement)}
        self.used |= {name for output in module.outputs for name in refs(output)}
        for member in module.members:
            for place, number in places(member.build):
                self.related.add(slot(member, *place), number)

    def of_value(self, name: str) -> Sizes:
        shape = self.infos.get(name, Info()).shape
        if shape is None:
            raise Unknown
        return tuple(self.related.add((name, i), size) for i, size in enumerate(shape))

    def of_call(self, member: Member) -> Sizes:
        """Return the numbers in the call that makes a member."""
        return tuple(slot(member, *place) for place, _ in places(member.build))

    def of_tensor(self, member: Member) -> Sizes:
        """Return the shape of a parameter or buffer: of what the call that makes it names, or one that can't change."""
        build: ast.expr = member.build
        at: Place = ()
        if isinstance(build, ast.Call) and dotted(build.func) == "nn.Parameter":
            build, at = build.args[0], (0,)
        if not isinstance(build, ast.Call) or dotted(build.func) not in MAKERS:
            if "" not in member.keys:
                raise Unknown
            self.related.fix(self.of_call(member))
            return tuple(map(self.fixed, member.keys[""].shape))
        for i, argument in enumerate(build.args):
            if isinstance(argument, ast.Tuple):
                return tuple(slot(member, *at, i, k) for k in range(len(argument.elts)))
        return tuple(slot(member, *at, i) for i in range(len(build.args)))

    def weight(self, member: Member, key: str) -> Sizes:
        """Return the shape of a layer's weight that is used outside of the layer."""
        order = {"nn.Embedding": (0, 1), "nn.Linear": (1, 0)}.get(member.layer, ())
        if key != "weight" or not order:
            raise Unknown
        return tuple(slot(member, i) for i in order)

    def fix(self, trees: Iterable[ast.expr]) -> None:
        """Fix the sizes of all values and members in some expressions, but not of those whose shape is only asked."""
        nodes = [node for tree in trees for node in walk(tree)]
        asked = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "shape"}
        for node in nodes:
            if id(node) in asked:
                continue
            if isinstance(node, MemberRef):
                self.related.fix(self.of_call(node.member))
            elif isinstance(node, Ref) and self.infos.get(node.value, Info()).shape is not None:
                self.related.fix(self.of_value(node.value))

    def fixed(self, number: Dim) -> Size:
        """Return a size that can't change."""
        size = self.related.add(("fixed", number), number)
        self.related.fix([size])
        return size

    def is_one(self, size: Size) -> bool:
        return self.related.value[size] == 1

    def tie(self, first: Sizes, second: Sizes) -> None:
        """Tie the sizes of two values of one shape."""
        for a, b in zip(first, second, strict=True):
            if a is None or b is None or self.related.value[a] != self.related.value[b]:
                known = [size for size in (a, b) if size is not None]
                if len(known) == 2 and all(isinstance(self.related.value[size], int) for size in known):
                    raise Unknown
                self.related.fix(known)
            else:
                self.related.tie(a, b)

    def product(self, sizes: Sizes) -> Size:
        """Return the size of several axes as one: in proportion to the last that may change."""
        number = math.prod(self.related.value[size] for size in sizes)
        changing = [size for size in sizes if not self.related.is_fixed(size)]
        self.related.fix(changing[:-1])
        return self.related.add_tied(("product", *sizes), number, changing[-1]) if changing else self.fixed(number)

    def broadcast(self, operands: Operands) -> Sizes:
        made: list[Size] = []
        for i in range(max(map(len, operands)), 0, -1):
            there = [sizes[-i] for sizes in operands if len(sizes) >= i]
            wide = [size for size in there if not self.is_one(size)]
            self.related.fix(size for size in there if self.is_one(size))
            for size in wide[1:]:
                self.tie(wide[:1], (size,))  # type: ignore[arg-type]
            made.append((wide or there)[0])
        return tuple(made)
