"""Solve equations between parameters of one network and known values.

The value that an equation demands is carried from the outermost operation of its unknown side to the parameter: each
operation on the way is undone. NaN stands for elements that nothing is said of. Equations with several unknown
parameters are taken apart, if the known side is made in the same way; else one of the parameters is chosen freely, such
as the statistics of a norm that is folded into the layer before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.binding import Equation
from onnxgen.canonical.fitting import Unfit, fitted, quotient
from onnxgen.canonical.matching import below
from onnxgen.canonical.terms import NOTHING, VIEWS, Monomial, Term
from onnxgen.canonical.values import LEAVES, Unknown, Values, region, viewed

NEAR = 1e-4  # numbers of two spellings of a function, as a share of the largest: tables are computed in float32


class Stuck(Exception):
    """An operation can't be undone."""


class Conflict(Exception):
    """A parameter would need two values."""


@dataclass
class Choice:
    """A parameter that an equation leaves open, and the number that it gets.

    Attributes:
        at: what part of it gets the number; None: all that is open.
        norm: the path of the norm that it belongs to.
    """

    leaf: Term
    number: float
    at: Term | None = None
    norm: str = ""


@dataclass
class Solution:
    """The elements of parameters; those that nothing is said of are NaN.

    Attributes:
        values: by parameter.
        chosen: what was open.
        fitted: the weights and biases of layers of which only the result is known.
        apart: the equations that don't hold.
        open: the equations that were not solved.
    """

    values: dict[Term, Tensor] = field(default_factory=dict)
    chosen: list[Choice] = field(default_factory=list)
    fitted: list[Term] = field(default_factory=list)
    apart: list[Equation] = field(default_factory=list)
    open: list[Equation] = field(default_factory=list)


class Solver:
    """Finds the parameters of the second network, from the values of the first."""

    def __init__(
        self,
        terms: Algebra,
        known: Values,
        unknown: Iterable[Term],
        choices: Callable[[Sequence[Term]], Sequence[Choice]],
        near: tuple[float, float] = (NEAR, 0.0),
    ) -> None:
        """
        Args:
            known: values of the first network.
            unknown: the parameters of the second.
            choices: what may be chosen for parameters that are open together.
            near: how far known numbers may be apart: as a share of the largest, and at least.
        """
        self.terms, self.given, self.choices, self.near = terms, known, choices, near
        self.solution = Solution({leaf: torch.full(leaf.shape, math.nan, dtype=torch.float64) for leaf in unknown})
        self.leaves: dict[Term, frozenset[Term]] = {}
        self.whole: set[Term] = set()  # parameters that are known
        self.changes: dict[Term, int] = {}  # how often a parameter was changed
        self.tried: dict[tuple[Equation, str], tuple[int, ...]] = {}
        self.adding: dict[Term, bool] = {}

    def solve(self, equations: Sequence[Equation]) -> Solution:
        open_ = list(equations)
        while open_:
            for step in (self._direct, self._taken_apart, self._loosely, self._fitted, self._chosen):
                rest = step(open_)
                if len(rest) < len(open_) or step is self._chosen:
                    break
            if len(rest) == len(open_) and not self._progress:
                self.solution.open = rest
                break
            open_ = rest
        return self.solution

    _progress = False
    _is_loose = False
    _may_fit = False

    # ---- three ways --------------------------------------------------------------------------------------------------

    def _direct(self, equations: Sequence[Equation]) -> list[Equation]:
        """Solve what can be solved for one parameter. Returns what is left."""
        rest = []
        for equation in equations:
            if not self._is_new(equation, f"direct {self._is_loose} {self._may_fit}"):
                rest.append(equation)
                continue
            try:
                value = self.given.of(equation.one)
            except Unknown:
                self.solution.apart.append(equation)
                continue
            try:
                if self.unknown(equation.other):
                    self._assign(equation.other, self._fitting(value, equation.other))
                elif not self.same(value, self._values().of(equation.other)):
                    raise Conflict
            except Stuck:
                rest.append(equation)
            except (Conflict, Unknown):
                self.solution.apart.append(equation)
        return rest

    def _taken_apart(self, equations: Sequence[Equation]) -> list[Equation]:
        """Solve one of the equations whose sides are made alike, that with the fewest unknown parameters."""
        for equation in sorted(equations, key=lambda e: len(self.unknown(e.other))):
            parts = self._parts(equation) if self._is_new(equation, "parts") else None
            if parts is None:
                continue
            before = {
                leaf: value.clone()
                for leaf, value in self.solution.values.items()
                if leaf in self.unknown(equation.other)
            }
            failed = len(self.solution.apart)
            left = self._direct(parts)
            while left and len(self.solution.apart) == failed:
                more = self._taken_apart(left)
                if len(more) == len(left):
                    break
                left = self._direct(more)
            if not left and len(self.solution.apart) == failed:
                return [e for e in equations if e is not equation]
            self.solution.values.update(before)
            self.whole -= before.keys()
            for leaf in before:
                self.changes[leaf] = self.changes.get(leaf, 0) + 1
            self._is_new(equation, "parts")
            del self.solution.apart[failed:]
        return list(equations)

    def _loosely(self, equations: Sequence[Equation]) -> list[Equation]:
        """Solve what can be solved if numbers may be subtracted, such as an epsilon that the file has added already.

        Where the file shows such a number, it has to be the same: so no variance makes up for another epsilon.
        """
        possible = [e for e in equations if not self._adds_a_number(e.one)]
        self._is_loose = True
        try:
            rest = self._direct(possible)
        finally:
            self._is_loose = False
        solved = {*possible} - {*rest}
        return [e for e in equations if e not in solved]

    def _fitted(self, equations: Sequence[Equation]) -> list[Equation]:
        """Solve what can be solved if a layer of known inputs may have any weights that make its result."""
        self._may_fit = True
        try:
            return self._direct(equations)
        finally:
            self._may_fit = False

    def _is_new(self, equation: Equation, how: str) -> bool:
        """Return False if an equation was tried in this way before, and nothing in it has changed since."""
        state = tuple(self.changes.get(leaf, 0) for leaf in self._leaves_in(equation.other))
        if self.tried.get((equation, how)) == state:
            return False
        self.tried[equation, how] = state
        return True

    def _chosen(self, equations: Sequence[Equation]) -> list[Equation]:
        """Choose one parameter."""
        self._progress = False
        for equation in sorted(equations, key=lambda e: len(self.unknown(e.other))):
            leaves = sorted(self.unknown(equation.other), key=lambda t: t.number)
            for choice in self.choices(leaves) or self._by_size(equation.other):
                if self._is_open(choice.leaf):
                    at = choice.leaf if choice.at is None else choice.at
                    self._choose(at, torch.full(at.shape, choice.number, dtype=torch.float64))
                    self.solution.chosen.append(choice)
                    self._progress = True
            if self._progress:
                break
        return list(equations)

    def _choose(self, term: Term, value: Tensor) -> None:
        """Let a part of a parameter have a value where it is open."""
        known = self._values().of(term)
        self._assign(term, torch.where(known.isnan(), value, torch.nan))

    def _by_size(self, term: Term) -> list[Choice]:
        """Choose the unknown parameter of the fewest elements: 0 for what is added, 1 for what is multiplied."""
        while term.op in VIEWS:
            term = term.args[0]
        if term.op != "sum":
            return []
        products = [(m, self._unknown_factors(m)) for m, _ in term.args[0]]
        products = [(m, factors) for m, factors in products if factors]
        number = 0.0 if len(products) > 1 and any(len(factors) == 1 for _, factors in products) else 1.0
        possible = []
        for monomial, factors in products:
            for factor in factors:
                leaf = self._alone(factor)
                if leaf is not None and (number == 0.0) == (len(factors) == 1):
                    key = (self._elements(factor), -len(monomial), -leaf.number)
                    possible.append((key, Choice(leaf, number, factor)))
        return [min(possible, key=lambda p: p[0])[1]] if possible else []

    def _elements(self, term: Term) -> Any:
        """Return how many elements of a parameter a part of it has."""
        while term.op in (*VIEWS, "detach"):
            term = term.args[0]
        if term.op != "call":
            return math.prod(term.shape)
        rows = {*self._values().of(term.args[2][0]).reshape(-1).tolist()}
        return len(rows) * math.prod(term.args[1].shape[1:])

    def _alone(self, term: Term) -> Term | None:
        while term.op in (*VIEWS, "slice", "detach") or (term.op == "call" and term.args[0] == "aten::index.Tensor"):
            term = next(iter(term.parts()))
        return term if term.op in LEAVES else None

    # ---- what is unknown ---------------------------------------------------------------------------------------------

    def unknown(self, term: Term) -> frozenset[Term]:
        """Return the parameters in a term that have unknown elements."""
        return frozenset(leaf for leaf in self._leaves_in(term) if self._is_open(leaf))

    def _leaves_in(self, term: Term) -> frozenset[Term]:
        if term not in self.leaves:
            self.leaves[term] = frozenset(t for t in below([term]) if t.op in LEAVES)
        return self.leaves[term]

    def _adds_a_number(self, term: Term) -> bool:
        """Return True if a number is added to something in a term."""
        if term not in self.adding:
            sums = (t.args[0] for t in below([term]) if t.op == "sum")
            self.adding[term] = any(len(items) > 1 and NOTHING in dict(items) for items in sums)
        return self.adding[term]

    def _is_open(self, leaf: Term) -> bool:
        value = self.solution.values.get(leaf)
        if value is None or leaf in self.whole:
            return False
        if bool(value.isnan().any()):
            return True
        self.whole.add(leaf)
        return False

    def _values(self) -> Values:
        return Values(self.terms, {**self.given.leaves, **self.solution.values})

    def _unknown_factors(self, monomial: Monomial) -> list[Term]:
        return [f for f, _ in monomial if self.unknown(f) and not self._known_here(f)]

    def _known_here(self, term: Term) -> bool:
        """Return True if a part of parameters is known whole, though they are not."""
        try:
            return not bool(self._values().of(term).isnan().any())
        except Unknown:
            return False

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Return True if two known values are the same, but for the rounding of their constants."""
        try:
            one, other = torch.broadcast_tensors(_squeezed(one), _squeezed(other))  # type: ignore[no-untyped-call]
        except RuntimeError:
            return False
        if not one.is_floating_point() and not other.is_floating_point():
            return bool(torch.equal(one, other))
        one, other = one.double(), other.double()
        stated = ~(one.isnan() | other.isnan())
        one, other = one[stated], other[stated]
        huge = (one.abs() > 6e4) & (other.abs() > 6e4)  # what stands for infinity in a mask
        if not torch.equal(one[huge].sign(), other[huge].sign()):
            return False
        one, other = one[~huge], other[~huge]
        if not one.numel():
            return True
        if bool(one.isinf().any()):
            return bool(torch.equal(one, other))
        return float((one - other).abs().max()) <= self.near[0] * float(one.abs().max()) + self.near[1]

    def _fitting(self, value: Tensor, term: Term) -> Tensor:
        """Return a value with the shape of a term. Raises `Conflict`."""
        if value.shape == term.shape:
            return value
        if [s for s in value.shape if s != 1] == [s for s in term.shape if s != 1]:
            return value.reshape(term.shape)
        try:
            return value.expand(term.shape)
        except RuntimeError:
            return self._narrowed(value, term)

    def _narrowed(self, value: Tensor, term: Term) -> Tensor:
        """Return a value without the axes that a term leaves to broadcasting. Raises `Conflict` if it varies there."""
        shape = (1,) * (value.dim() - len(term.shape)) + tuple(term.shape)
        if len(shape) != value.dim():
            value = value.reshape((1,) * (len(shape) - value.dim()) + tuple(value.shape))
        for axis, (size, wanted) in enumerate(zip(value.shape, shape, strict=True)):
            if size == wanted:
                continue
            if wanted != 1:
                if size != 1:
                    raise Conflict
                value = value.expand(*value.shape[:axis], wanted, *value.shape[axis + 1 :])
                continue
            value = self._one_of(value, axis)
        return value.reshape(term.shape)

    def _one_of(self, value: Tensor, axis: int) -> Tensor:
        """Return what all parts along an axis are. Raises `Conflict` if they differ."""
        whole = value.nan_to_num(0.0).sum(axis, keepdim=True) if value.isnan().any() else None
        first = value.narrow(axis, 0, 1)
        if whole is not None:
            count = (~value.isnan()).sum(axis, keepdim=True)
            first = torch.where(count > 0, whole / count.clamp(min=1), torch.nan)
        if not self.same(value, first.expand(value.shape)):
            raise Conflict
        return first

    # ---- undoing operations ------------------------------------------------------------------------------------------

    def _assign(self, term: Term, value: Tensor) -> None:
        """Let a term have a value. Raises `Stuck` or `Conflict`."""
        match term.op:
            case "parameter" | "frozen":
                self._set(term, value)
            case "view":
                self._assign(term.args[0], viewed(value, term.args[1].inverse()).reshape(term.args[0].shape))
            case "reshape":
                self._assign(term.args[0], value.reshape(term.args[0].shape))
            case "expand":
                self._assign(term.args[0], self._narrowed(value, term.args[0]))
            case "detach":
                self._assign(term.args[0], value)
            case "slice":
                whole = torch.full(term.args[0].shape, math.nan, dtype=torch.float64)
                whole[region(term)] = value.double()
                self._assign(term.args[0], whole)
            case "cat":
                self._pieces(term, value)
            case "sum":
                self._addend(term, value)
            case "each":
                self._argument(term, value)
            case "call" if term.args[0] == "aten::index.Tensor" and len(term.args[2]) == 1:
                self._rows(term, value)
            case _:
                raise Stuck

    def _set(self, leaf: Term, value: Tensor) -> None:
        if leaf not in self.solution.values:
            raise Conflict
        mine = self.solution.values[leaf]
        stated, known = ~value.isnan(), ~mine.isnan()
        both = stated & known
        if bool(both.any()) and not self.same(value[both], mine[both]):
            raise Conflict
        if bool((new := stated & ~known).any()):
            mine[new] = value[new]
            self.changes[leaf] = self.changes.get(leaf, 0) + 1

    def _pieces(self, term: Term, value: Tensor) -> None:
        pieces, axis = term.args
        at, stuck = 0, False
        for piece in pieces:
            part = value.narrow(axis, at, piece.shape[axis])
            at += piece.shape[axis]
            try:
                if self.unknown(piece):
                    self._assign(piece, part)
                elif not self.same(part, self._values().of(piece)):
                    raise Conflict
            except Stuck:
                stuck = True
        if stuck:
            raise Stuck

    def _addend(self, term: Term, value: Tensor) -> None:
        if not self._is_loose and self._adds_a_number(term):
            raise Stuck
        values = self._values()
        open_: list[tuple[Monomial, Any, Term]] = []
        rest = value.double()
        for monomial, coefficient in term.args[0]:
            unknown = self._unknown_factors(monomial)
            if unknown:
                if len(unknown) > 1 or dict(monomial)[unknown[0]] != 1:
                    raise Stuck
                open_.append((monomial, coefficient, unknown[0]))
            else:
                rest = rest - _times(values, monomial, coefficient)
        if not open_:
            return
        if self._may_fit and self._fit([(f, n) for m, n, f in open_ if len(m) == 1], rest, len(open_)):
            return
        if len(open_) > 1:
            raise Stuck
        ((monomial, coefficient, factor),) = open_
        by = _times(values, monomial - {(factor, 1)}, coefficient)
        wanted, parts = quotient(rest, by, factor.shape)
        if parts is not None and not self.same(rest, parts):
            raise Conflict
        self._assign(factor, self._narrowed(wanted, factor) if wanted.shape != factor.shape else wanted)

    def _fit(self, addends: Sequence[tuple[Term, float]], value: Tensor, count: int) -> bool:
        """Let a layer of known inputs, and what is added to it, be a value. Returns False if it is no such layer."""
        layers = [(f, n) for f, n in addends if self._alone(f) is None]
        biases = [(f, n) for f, n in addends if self._alone(f) is not None]
        if len(layers) != 1 or len(biases) > 1 or count != len(addends):
            return False
        ((layer, number),) = layers
        weights = [t for t in below([layer]) if self._alone(t) is not None and self.unknown(t)]
        try:
            value = value.expand(layer.shape) / number
            weight, bias = fitted(self._values(), layer, weights[-1], value, bool(biases))
        except (Unfit, Unknown, RuntimeError):
            return False
        self._assign(weights[-1], weight)
        if bias is not None:
            ((factor, by),) = biases
            whole = bias.expand(layer.shape) * number / by
            self._assign(factor, self._narrowed(whole, factor))
        leaves = (self._alone(t) for t in (weights[-1], *(f for f, _ in biases)))
        self.solution.fitted += [leaf for leaf in leaves if leaf is not None]
        return True

    def _argument(self, term: Term, value: Tensor) -> None:
        name, attributes, *operands = term.args
        if name == "power" and bool((value[~value.isnan()] > 0).all()):
            value = value ** (1 / attributes[0])
        elif name == "cast" and "float" in operands[0].dtype:
            pass
        elif name in INVERSE:
            value = INVERSE[name](value)
        else:
            raise Stuck
        self._assign(operands[0], self._fitting(value, operands[0]))

    def _rows(self, term: Term, value: Tensor) -> None:
        """Undo the taking of rows by known numbers."""
        table, (index,) = term.args[1], term.args[2]
        if not isinstance(index, Term) or self.unknown(index):
            raise Stuck
        numbers = self._values().of(index).reshape(-1) % table.shape[0]
        rows = value.reshape(len(numbers), -1).double()
        whole = torch.full((table.shape[0], rows.shape[1]), math.nan, dtype=torch.float64)
        row, column = (~rows.isnan()).nonzero(as_tuple=True)
        whole[numbers[row], column] = rows[row, column]
        if not self.same(whole[numbers], rows):
            raise Conflict
        self._assign(table, whole.reshape(table.shape))

    # ---- taking equations apart --------------------------------------------------------------------------------------

    def _parts(self, equation: Equation) -> list[Equation] | None:
        """Return equations between the operands of two values that are made alike."""
        one, other = equation.one, equation.other
        while other.op == "view":
            if one.shape != other.shape:
                if [s for s in one.shape if s != 1] != [s for s in other.shape if s != 1]:
                    return None
                one = self.terms.reshaped(one, other.shape)
            one, other = self.terms.rearranged(one, other.args[1].inverse()), other.args[0]
        if other.op != one.op or other.op in LEAVES:
            return None
        if other.op == "sum":
            return self._products(one, other, equation)
        if other.op == "each" and one.args[0] != other.args[0]:
            return None
        if other.op in ("contract", "amax", "amin") and (
            [axes for _, axes in one.args[0]] != [axes for _, axes in other.args[0]] or one.args[1:] != other.args[1:]
        ):
            return None
        mine, theirs = list(one.parts()), list(other.parts())
        if len(mine) != len(theirs) or (other.op == "call" and one.args[0] != other.args[0]):
            return None
        return [Equation(a, b, equation.inside) for a, b in zip(mine, theirs, strict=True)]

    def _products(self, one: Term, other: Term, equation: Equation) -> list[Equation] | None:
        mine = list(one.args[0])
        theirs = [(self._without_ones(m), n) for m, n in other.args[0] if not self._is_nothing(m)]
        if len(mine) != len(theirs):
            return None
        parts: list[Equation] = []
        for monomial, number in sorted(theirs, key=lambda i: (self._count(i[0]), len(i[0]), _origin(i[0]))):
            found = next(
                (item for item in sorted(mine, key=lambda i: _origin(i[0])) if self._alike(item, (monomial, number))),
                None,
            )
            if found is None:
                return None
            mine.remove(found)
            parts += [Equation(a, b, equation.inside) for a, b in self._factors(found[0], monomial)]
        return parts

    def _without_ones(self, monomial: Monomial) -> Monomial:
        """Return a product without what was chosen to be 1."""
        return frozenset((f, e) for f, e in monomial if self.unknown(f) or bool((self._values().of(f) != 1).any()))

    def _is_nothing(self, monomial: Monomial) -> bool:
        """Return True for a product that is known to be 0, such as with the mean of a folded norm."""
        known = [f for f, _ in monomial if not self.unknown(f)]
        return any(not bool(self._values().of(f).any()) for f in known)

    def _count(self, monomial: Monomial) -> int:
        """Return how many parameters of a product are unknown: what is known is paired first, by its value."""
        return sum(len(self.unknown(f)) for f, _ in monomial)

    def _alike(self, one: tuple[Monomial, Any], other: tuple[Monomial, Any]) -> bool:
        if not math.isclose(one[1], other[1], rel_tol=1e-5):
            return False
        kinds = [sorted((_operation(f), e) for f, e in m) for m in (one[0], other[0])]
        if kinds[0] != kinds[1]:
            return False
        return all(any(self._fits(f, g) for f, _ in one[0]) for g, _ in other[0])

    def _fits(self, one: Term, other: Term) -> bool:
        """Return False for a factor with a known value that is another one."""
        if [s for s in one.shape if s != 1] != [s for s in other.shape if s != 1]:
            return False
        try:
            return bool(self.unknown(other)) or self.same(self.given.of(one), self._values().of(other))
        except Unknown:
            return False

    def _factors(self, one: Monomial, other: Monomial) -> list[tuple[Term, Term]]:
        """Pair factors: those of known values, then by what they are, then in their order."""
        left = sorted(one, key=lambda p: p[0].origin)
        pairs = []
        for factor, exponent in sorted(other, key=lambda p: (bool(self.unknown(p[0])), p[0].origin)):
            fitting = [p for p in left if p[1] == exponent and _operation(p[0]) == _operation(factor)]
            fitting = [p for p in fitting if self._fits(p[0], factor)]
            if not fitting:
                fitting = [p for p in left if p[1] == exponent]
            if not fitting:
                continue
            left.remove(fitting[0])
            pairs.append((fitting[0][0], factor))
        return pairs


INVERSE: Mapping[str, Any] = {
    "exp": torch.log,
    "log": torch.exp,
    "tanh": torch.atanh,
    "sigmoid": torch.logit,
}


def _operation(term: Term) -> str:
    """Return what makes a term, but for views. A file may store a parameter in another layout."""
    while term.op in VIEWS:
        term = term.args[0]
    return term.op


def _times(values: Values, monomial: Iterable[tuple[Term, int]], coefficient: Any) -> Tensor:
    result = torch.tensor(float(coefficient), dtype=torch.float64)
    for factor, exponent in monomial:
        result = result * values.of(factor) ** exponent
    return result


def _origin(monomial: Monomial) -> int:
    return min((f.origin for f, _ in monomial), default=-1)


def _squeezed(tensor: Tensor) -> Tensor:
    """Return a tensor without its leading axes of size 1."""
    while tensor.dim() and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
