"""Whether two networks are one function, by their canonical forms, and which tensors stand for each other.

Leaves are known by their elements here: a tensor that both have is one leaf, under whatever name. Where the forms then
differ, one is laid over the other (`canonical/binding.py`), and each tensor of the second that an equation leaves alone
on its side is replaced by the other side. The second is read again with these: if the forms are equal then, only values
differ.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, nn

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.arranging import constant
from onnxgen.canonical.binding import Equation, Walk
from onnxgen.canonical.capture import Captured, Reader, exported, still_free
from onnxgen.canonical.colours import Colours
from onnxgen.canonical.matching import below
from onnxgen.canonical.rules import NotFollowed, dtype_name
from onnxgen.canonical.terms import Monomial, Shape, Term, order
from onnxgen.canonical.values import LEAVES, Unknown, Values
from onnxgen.diff.answer import Weight
from onnxgen.diff.weights import compared

FAULTS = (TypeError, ValueError, AttributeError, IndexError, KeyError, ZeroDivisionError, RecursionError)


@dataclass
class Matched:
    """What the canonical forms say.

    Attributes:
        is_same: they are equal, with the bound tensors in their places.
        weights: each tensor of the second network, beside what it is bound to.
        turned: the tensors of the first were bound to those of the second, which has fewer of them.
    """

    is_same: bool = False
    weights: list[Weight] = field(default_factory=list)
    turned: bool = False


class Known(Reader):
    """Reads a program whose leaves are given terms."""

    def __init__(self, terms: Algebra, program: Any, known: Mapping[str, Term], prefix: str, folds: bool) -> None:
        """`folds`: what convolutions are multiplied with goes into their weights."""
        super().__init__(terms, program, {})
        self.known, self.prefix = known, prefix
        self.folder = Folder(terms) if folds else None

    def _leaf(self, path: str, tensor: Tensor, is_parameter: bool, persistent: bool | None) -> Term:
        term = self.known.get(path)
        if term is None and not tensor.is_floating_point():
            term = self.constant(tensor)
        if term is None:
            form = (tuple(tensor.shape), dtype_name(tensor.dtype))
            tied = self.tied.setdefault((*form, tensor.data_ptr()), path) if tensor.numel() else path
            term = (
                self.result.leaves[tied] if tied != path else self.terms.term("parameter", (self.prefix + path,), *form)
            )
        self.result.leaves[path] = term
        return term

    def _called(self, node: Any, values: Mapping[Any, Any]) -> Any:
        made = super()._called(node, values)
        return made if self.folder is None or not isinstance(made, Term) else self.folder.folded(made)

    def read(self) -> Captured:
        try:
            return super().read()
        except NotFollowed:
            raise
        except FAULTS as error:
            raise NotFollowed(f"it can't be brought to terms: {type(error).__name__}: {error}") from error


class Folder:
    """Takes factors of a channel each, such as those of a BatchNorm, into the weight of the convolution before them."""

    def __init__(self, terms: Algebra) -> None:
        self.terms, self.is_still = terms, Colours(()).is_still

    def folded(self, term: Term) -> Term:
        if term.op != "sum":
            return term
        items: dict[Monomial, Any] = {}
        for monomial, number in self.terms.items_of(term).items():
            convolution = self._convolution(monomial, number)
            if convolution is None:
                items[monomial] = items.get(monomial, 0) + number
            else:
                items[frozenset({(convolution, 1)})] = items.get(frozenset({(convolution, 1)}), 0) + 1
        return self.terms.sum_of(items, term.shape, term.dtype)

    def _convolution(self, monomial: Monomial, number: Any) -> Term | None:
        """Return the convolution that a product is, or None."""
        found = [f for f, exponent in monomial if f.op == "call" and f.args[0] == "conv" and exponent == 1]
        if len(found) != 1 or (len(monomial) == 1 and number == 1):
            return None
        (convolution,) = found
        weight: Term = convolution.args[2]
        per, rank = weight.shape[0], len(convolution.shape)
        made = weight
        for factor, exponent in sorted(monomial, key=order):
            if factor is convolution:
                continue
            wide = (1,) * (rank - len(factor.shape)) + tuple(factor.shape)
            alone = all(size == 1 for axis, size in enumerate(wide) if axis != 1)
            if len(wide) != rank or not alone or wide[1] not in (1, per) or not self.is_still(factor):
                return None
            column = self.terms.reshaped(factor, (wide[1], *[1] * (rank - 1)))
            for _ in range(exponent):
                made = self.terms.multiplied(made, column, weight.shape, weight.dtype)
        made = self.terms.added([(made, number)], weight.shape, weight.dtype)
        return self.terms.term(
            "call", ("conv", convolution.args[1], made, *convolution.args[3:]), convolution.shape, convolution.dtype
        )


class Alone:
    """What parameters are, by the equations that have one of them, or a part or a view of one, alone on a side."""

    def __init__(self, terms: Algebra) -> None:
        self.terms = terms
        self.pieces: dict[Term, list[Piece]] = defaultdict(list)

    def of(self, equations: Iterable[Equation]) -> dict[Term, Term]:
        for equation in equations:
            self._put(equation.one, equation.other)
        found = {leaf: self._assembled(leaf) for leaf in self.pieces}
        return {leaf: made for leaf, made in found.items() if made is not None}

    def _put(self, value: Term, term: Term) -> None:
        region: tuple[int, int, int] | None = None
        while term.op not in LEAVES:
            fitting = self._reshaped(value, term.args[1].shape) if term.op == "view" else None
            if fitting is not None:
                value, term = self.terms.rearranged(fitting, term.args[1].inverse()), term.args[0]
            elif term.op == "slice" and term.args[4] == 1 and region is None:
                region, term = term.args[1:4], term.args[0]
            else:
                return
        shape = tuple(region[2] - region[1] if region and i == region[0] else size for i, size in enumerate(term.shape))
        fitting = self._reshaped(value, shape)
        if fitting is not None:
            self.pieces[term].append(Piece(region, fitting))

    def _reshaped(self, value: Term, shape: Shape) -> Term | None:
        """Return a value with other axes of size 1."""
        if [s for s in value.shape if s != 1] != [s for s in shape if s != 1]:
            return None
        return self.terms.reshaped(value, shape)

    def _assembled(self, leaf: Term) -> Term | None:
        """Return what a leaf is, from its pieces, or None if they are not all of it."""
        pieces = self.pieces[leaf]
        whole = [p.value for p in pieces if p.region is None]
        if whole:
            return whole[0]
        regions = sorted({p.region: p for p in pieces if p.region is not None}.items())
        (axis, at, _), parts = regions[0][0], []
        for region, piece in regions:
            if region[:2] != (axis, at):
                return None
            parts.append(piece.value)
            at = region[2]
        complete = regions[0][0][1] == 0 and at == leaf.shape[axis]
        return self.terms.joined(parts, axis) if complete else None


@dataclass(frozen=True)
class Piece:
    """A part of a leaf: the elements of an axis, from the first to one behind the last (None: all of it)."""

    region: tuple[int, int, int] | None
    value: Term


class Forms:
    """Two networks, followed by `torch.export`."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        arguments: Sequence[Sequence[Tensor]],
        free: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        """`arguments`: an example for each; `free`: the axes of each argument that have any size.

        Raises:
            NotFollowed: `torch.export` can't follow one.
        """
        self.terms = Algebra()
        self.states = [
            {**dict(m.named_parameters(remove_duplicate=False)), **dict(m.named_buffers(remove_duplicate=False))}
            for m in modules
        ]
        with _silent():
            first = exported(modules[0], arguments[0], free[0], asks=True)
            axes = still_free(first) if arguments[0] is arguments[1] else free[1]
            self.programs = (first, exported(modules[1], arguments[1], axes, asks=True))
        self.exported = [followed.program for followed in self.programs]

    def match(self) -> Matched:
        """Compare the canonical forms. Raises `NotFollowed`."""
        one, other = (self._by_elements(side) for side in (0, 1))
        need_same_inputs(one, other)
        if one.outputs == other.outputs:
            return Matched(True, self._alike(one, other))
        ways = []
        for folds in (False, True):
            for side in (1, 0):
                ways.append(self._bound(side, folds))
                if ways[-1].is_same:
                    return ways[-1]
        return ways[0]

    def read(self, side: int, known: Mapping[str, Term], prefix: str, folds: bool = False) -> Captured:
        return Known(self.terms, self.programs[side], known, prefix, folds).read()

    def _by_elements(self, side: int) -> Captured:
        return self.read(side, {path: self._element_leaf(t) for path, t in self._floats(side).items()}, "")

    def _element_leaf(self, tensor: Tensor) -> Term:
        if tensor.numel() and bool((tensor == 0).all() or (tensor == 1).all()):
            return constant(self.terms, tensor.detach().cpu())  # the other may have no tensor there
        return self.terms.term("parameter", (digest(tensor),), tuple(tensor.shape), dtype_name(tensor.dtype))

    def _floats(self, side: int) -> dict[str, Tensor]:
        return {path: t for path, t in self.states[side].items() if t.is_floating_point()}

    def _alike(self, one: Captured, other: Captured) -> list[Weight]:
        keys: dict[Term, str] = {}
        for path, term in one.leaves.items():
            keys.setdefault(term, path)
        return [
            Weight(
                path, (path if one.leaves.get(path) is term else keys.get(term, path),), "same", "", tuple(term.shape)
            )
            for path, term in other.leaves.items()
        ]

    # ---- other values ------------------------------------------------------------------------------------------------

    def _bound(self, side: int, folds: bool) -> Matched:
        """Bind the leaves of a side to what the other has in their places."""
        base = self.read(1 - side, {}, "first ", folds)
        known = self._same_elements(base, side)
        mine = self.read(side, known, "second ", folds)
        laid = Walk(self.terms, Colours(base.outputs), Colours(mine.outputs)).walk(base.outputs, mine.outputs)
        made = Alone(self.terms).of(laid.equations)
        bound = {path: made.get(leaf, leaf) for path, leaf in mine.leaves.items() if leaf in made or path in known}
        again = self.read(side, bound, "second ", folds)
        is_same = again.outputs == base.outputs and again.structure == base.structure
        return Matched(is_same, list(self._compared(side, mine, bound)), side == 0)

    def _same_elements(self, base: Captured, side: int) -> dict[str, Term]:
        """Return, for leaves whose elements only one leaf of the other has, that leaf; or the one of the same name."""
        theirs, mine = self._floats(1 - side), self._floats(side)
        by_digest = [{path: digest(t) for path, t in floats.items()} for floats in (theirs, mine)]
        counts = [Counter(each.values()) for each in by_digest]
        owner = {d: path for path, d in by_digest[0].items()}
        found = {}
        for path, d in by_digest[1].items():
            partner = path if by_digest[0].get(path) == d else owner.get(d)
            single = counts[0][d] == counts[1][d] == 1
            if partner is not None and partner in base.leaves and (single or partner == path):
                found[path] = base.leaves[partner]
        return found

    def _compared(self, side: int, mine: Captured, bound: Mapping[str, Term]) -> Iterator[Weight]:
        values = {f"first {p}": t.detach().double() for p, t in self._floats(1 - side).items()}
        for path in mine.leaves:
            tensor = self.states[side][path]
            if path not in bound:
                if tensor.is_floating_point():
                    yield Weight(
                        path, (), "added" if side else "removed", "nothing stands in its place", tuple(tensor.shape)
                    )
                continue
            term = bound[path]
            leaves = [t for t in below([term]) if t.op in LEAVES]
            try:
                given = Values(self.terms, {leaf: values[leaf.args[0]] for leaf in leaves})
                old = given.of(term).reshape(tensor.shape)
            except (Unknown, KeyError, RuntimeError):
                yield Weight(path, (), "changed", "it can't be compared", tuple(tensor.shape))
                continue
            new = tensor.detach().cpu()
            was = sorted({t.args[0].removeprefix("first ") for t in leaves})
            folded = any(t.op in ("sum", "each", "call") for t in below([term]))
            stands, own = old.expand(tensor.shape).double().numpy(), new.double().numpy()
            first, second = (stands, own) if side else (own, stands)  # what the second has is the new one
            yield compared(path, was, first, second, computed=folded)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep torch from writing and printing how a module failed: the answer says it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def need_same_inputs(one: Captured, other: Captured) -> None:
    """Raises `NotFollowed` if one takes other sizes than the other."""
    if one.inputs != other.inputs:
        raise NotFollowed(f"one takes inputs of the sizes {one.inputs}, the other {other.inputs}")
    if one.guards != other.guards and asked(one.guards) != asked(other.guards):
        raise NotFollowed(f"only one asks of sizes: {' and '.join(sorted(one.guards ^ other.guards))}")
    if one.ranges != other.ranges:
        raise NotFollowed(f"one takes the sizes {one.ranges}, the other {other.ranges}")
    if one.structure != other.structure:
        raise NotFollowed("they return other structures")


def asked(guards: Iterable[str]) -> frozenset[str]:
    """Return what guards ask of sizes, as expressions: in their texts, the order of factors and conditions varies."""
    found = set()
    for guard in (part for text in guards for part in text.split(" and ")):
        try:
            found.add(str(sympy.sympify(re.sub(r"L\[(\d+)\]\.size\(\)\[(\d+)\]", r"size_\1_\2", guard))))
        except (sympy.SympifyError, TypeError, ValueError, AttributeError):
            found.add(guard)
    return frozenset(found - {"True"})


def digest(tensor: Tensor) -> str:
    """Return a name for the elements of a tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.sha256(data).hexdigest()
