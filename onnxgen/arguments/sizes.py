"""The sizes of values and members, in classes of sizes that follow from each other.

A size is an axis of a value, or a number in the call that makes a member. Sizes of one class are in proportion: whoever
changes one changes all. A class is fixed if something that no rule describes depends on it (`rules.py`): then the
network may work with this size only. What a concatenation makes of sizes of several classes is their sum. `Shapes` ties
the sizes of values and members of one shape.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from fractions import Fraction
from typing import Any, TypeGuard

from onnxgen.code.module_def import Member, ModuleDef, flattened, used
from onnxgen.code.quote import MemberRef, Ref, refs, walk
from onnxgen.code.torch_api import dotted
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info
from onnxgen.structure.order import grouped

Size = tuple[Hashable, ...]  # (value, axis), or the path of a member and the place of a number in its call
Sizes = tuple[Any, ...]  # those of all axes of a value; None: nothing is known of this axis
Place = tuple[int | str, ...]
Terms = dict[Size, Fraction]  # by class, what it gives of a size that is a sum

FIXED: Size = ("fixed",)  # the key of what can't change


class Related:
    """Classes of sizes that are in proportion (union-find).

    Attributes:
        value: the number that each size is in the file.
        sums: the parts of each size that is a sum.
        fixed: representatives of the classes that can't change; see `is_fixed`.
    """

    def __init__(self) -> None:
        self.value: dict[Size, Dim] = {}
        self.sums: dict[Size, list[Size]] = {}
        self._parent: dict[Size, Size] = {}
        self._fixed: set[Size] = set()
        self._known: dict[Size, Terms] = {}

    def add(self, size: Size, value: Dim) -> Size:
        self.value.setdefault(size, value)
        self._parent.setdefault(size, size)
        return size

    def add_tied(self, size: Size, value: Dim, to: Size) -> Size:
        """Add a size that is in proportion to another."""
        self.tie(to, self.add(size, value))
        return size

    def find(self, size: Size) -> Size:
        while (above := self._parent[size]) != size:
            self._parent[size] = size = self._parent[above]
        return size

    def tie(self, a: Size, b: Size) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._known.clear()
            self._parent[b] = a
            if b in self._fixed:
                self._fixed.add(a)

    def fix(self, sizes: Iterable[Size | None]) -> None:
        self._known.clear()
        self._fixed.update(self.find(size) for size in sizes if size is not None)

    def is_fixed(self, size: Size) -> bool:
        return self.find(size) in self._fixed

    def terms(self, size: Size, above: tuple[Size, ...] = ()) -> Terms:
        """Return what a size follows from: itself if it is no sum; {} if that is not clear."""
        first, whole = self.find(size), self.value[size]
        if first in above or not isinstance(whole, int):
            return {}
        if first in self._fixed:
            return {FIXED: Fraction(whole)}
        if first not in self._known:
            ways = [*self._ways(first, (*above, first))]
            is_clear = all(terms == ways[0] and sum(terms.values()) == 1 for terms in ways)
            self._known[first] = (ways[0] if is_clear else {}) if ways else {first: Fraction(1)}
        return {key: share * whole for key, share in self._known[first].items()}

    def _ways(self, first: Size, above: tuple[Size, ...]) -> Iterator[Terms]:
        """Yield for each sum of a class what it follows from, as shares."""
        for total, parts in self.sums.items():
            if self.find(total) == first and any(self.find(part) != first for part in parts):
                shares: Counter[Size] = Counter()
                for part in parts:
                    shares.update(self.terms(part, above))
                yield {key: Fraction(n) / self.value[total] for key, n in shares.items()}  # type: ignore

    def settle(self) -> None:
        """Tie sums of one class to it, and fix the sums that do not follow from their parts, with these."""
        for _ in self.sums:
            known: dict[tuple[Hashable, ...], list[Size]] = {}
            for total, parts in self.sums.items():
                same = known.setdefault((self.find(total), *map(self.value.get, parts)), parts)
                for one, other in zip(same, parts):
                    self.tie(one, other)  # two sums that are one size, of equal parts
                if len({*map(self.find, parts)}) == 1:
                    self.tie(total, parts[0])
        for _ in self.sums:
            for total, parts in self.sums.items():
                if self.is_fixed(total) or all(map(self.is_fixed, parts)) or not self.terms(total):
                    self.fix([total, *parts])

    def classes(self) -> Iterator[list[Size]]:
        """Yield the classes that may change."""
        members = grouped((self.find(size), size) for size in [*self._parent])
        yield from (sizes for first, sizes in members.items() if first not in self._fixed)


def slot(member: Member, *place: int | str) -> Size:
    """Return the size that is the number at a place in the call that makes a member."""
    return (".".join(member.path), "in", *place)


def is_slot(size: Size) -> bool:
    return len(size) > 1 and size[1] == "in"


def places(tree: ast.AST, at: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield the integers in an expression with their places: indices of arguments and items, names of keywords."""
    if is_integer(tree):
        yield at, number(tree)
    elif isinstance(tree, ast.Call):
        for i, argument in enumerate(tree.args):
            yield from places(argument, (*at, i))
        for keyword in tree.keywords:
            yield from places(keyword.value, (*at, keyword.arg or ""))
    elif isinstance(tree, (ast.Tuple, ast.List)):
        for i, item in enumerate(tree.elts):
            yield from places(item, (*at, i))


def number(tree: ast.Constant) -> int:
    assert isinstance(tree.value, int)
    return tree.value


def is_integer(tree: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(tree, ast.Constant) and type(tree.value) is int


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
        axes: list[Size] = []
        for i in range(max(map(len, operands)), 0, -1):
            there = [sizes[-i] for sizes in operands if len(sizes) >= i]
            wide = [size for size in there if not self.is_one(size)]
            self.related.fix(size for size in there if self.is_one(size))
            for size in wide[1:]:
                self.tie(wide[:1], (size,))  # type: ignore[arg-type]
            axes.append((wide or there)[0])
        return tuple(axes)
