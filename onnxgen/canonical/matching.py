"""Match the leaves of two networks that have other names: by colour refinement, from the inputs and the outputs inward.

Source: B. Weisfeiler, A. Leman: The reduction of a graph to canonical form (1968). What is matched is only a proposal:
the terms with these leaves decide.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onnxgen.canonical.algebra import SYMMETRIC
from onnxgen.canonical.capture import Captured
from onnxgen.canonical.terms import VIEWS, Term, terms_in, without_ones
from onnxgen.canonical.views import Views

ROUNDS = 3  # of looking from the outputs and from the inputs, before leaves that are alike are matched by their order


def below(roots: Iterable[Any], base: Callable[[Term], Term] = lambda term: term) -> list[Term]:
    """Return all terms that results are made of, operands first; `base` may say for each what stands for it."""
    done: dict[Term, None] = {}
    todo: list[tuple[Term, bool]] = [(base(term), False) for root in roots for term in terms_in(root)]
    while todo:
        term, ready = todo.pop()
        if term in done:
            continue
        if ready:
            done[term] = None
        else:
            todo.append((term, True))
            todo += [(part, False) for part in map(base, term.parts()) if part not in done]
    return list(done)


def match(one: Captured, other: Captured, terms: Views) -> dict[str, str]:
    """Return, for leaves of the second that the first has not under their names, the leaves of the first.

    Leaves without a partner are left out.
    """
    mine = {path: term for path, term in one.leaves.items() if path not in other.leaves}
    theirs = {path: term for path, term in other.leaves.items() if path not in one.leaves}
    sides = [(Side(one, mine, terms), mine), (Side(other, theirs, terms), theirs)]
    found: dict[str, str] = {}
    while mine and theirs:
        groups = [_by_colour(side, open_) for side, open_ in sides]
        both = [colour for colour in groups[0] if colour in groups[1]]
        single = [c for c in both if len(groups[0][c]) == len(groups[1][c]) == 1]
        if not both:
            break
        chosen = single or [min(both, key=lambda c: natural(groups[0][c][0]))]
        for colour in chosen:
            path, partner = groups[0][colour][0], groups[1][colour][0]
            found[partner] = path
            for (side, open_), leaf in zip(sides, (path, partner), strict=True):
                side.fixed[open_.pop(leaf)] = path
    return found


def natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts paths as a person would: layers.2 before layers.10."""
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)|\.", path) if p)


def _by_colour(side: Side, open_: Mapping[str, Term]) -> dict[str, list[str]]:
    colours = side.colours()
    groups: dict[str, list[str]] = defaultdict(list)
    for path in sorted(open_, key=natural):
        groups[colours.get(open_[path], f"unused {without_ones(open_[path].shape)}")].append(path)
    return groups


class Side:
    """One network, with the leaves whose partner is known."""

    def __init__(self, captured: Captured, open_: Mapping[str, Term], views: Views) -> None:
        self.views = views
        self.bases: dict[Term, Term] = {}
        self.roots: Sequence[Any] = [*captured.outputs, *captured.changed.values()]
        self.terms = below(self.roots, self.base)
        names = {term: path for path, term in captured.leaves.items()}
        free = {*open_.values()}
        self.fixed: dict[Term, str] = {term: path for term, path in names.items() if term not in free}

    def base(self, term: Term) -> Term:
        """Return what a term is an arrangement of: which ones there are depends on the names of leaves."""
        found = self.bases.get(term)
        if found is None:
            found, seen = term, set[Term]()
            while found not in seen:
                seen.add(found)
                turned = None if found.op in VIEWS else self.views.turned(found)
                found = found.args[0] if found.op in VIEWS else found if turned is None else turned[0]
            found = min((t for t in self._circle(found)), key=lambda t: t.number)
            self.bases[term] = found
        return found

    def _circle(self, term: Term) -> set[Term]:
        """Return the terms that are arrangements of one another, and of which none is the first."""
        found = {term}
        while (turned := self.views.turned(term)) is not None and turned[0] not in found:
            term = turned[0]
            found.add(term)
        return found

    def colours(self) -> dict[Term, str]:
        """Return a colour for each term: by what it is made of, and by what is made of it."""
        above: dict[Term, str] = {}
        for _ in range(ROUNDS):
            inside = Bases(self)
            for term in self.terms:
                inside[term] = self._inside(term, inside, above)
            above = self._above(inside)
        return above

    def _inside(self, term: Term, inside: Mapping[Term, str], above: Mapping[Term, str]) -> str:
        if term in self.fixed:
            return f"fixed {self.fixed[term]}"
        if term.op in ("parameter", "frozen"):
            return _digest(f"{term.op} {without_ones(term.shape)} {term.dtype} {above.get(term)}")
        return _digest(f"{term.op} {self._content(term, inside)}")

    def _content(self, term: Term, inside: Mapping[Term, str]) -> str:
        """Return what a term is made of, as a text that doesn't depend on the order that its terms were sorted in.

        That order comes from the names of leaves. So do the numbers that were taken out of sums.
        """
        if term.op == "sum":
            return str(sorted(_text(monomial, inside) for monomial, _ in term.args[0]))
        if term.op in ("contract", "amax", "amin"):
            return str(sorted(f"{inside[t]} {_role(term, n)}" for n, (t, _) in enumerate(term.args[0])))
        if term.op == "each" and term.args[0] in SYMMETRIC:
            return str((term.args[0], sorted(_text(t, inside) for t in term.args[2:])))
        return _text(term.args, inside)

    def _above(self, inside: Mapping[Term, str]) -> dict[Term, str]:
        uses: dict[Term, list[str]] = defaultdict(list)
        for number, root in enumerate(self.roots):
            for term in terms_in(root):
                uses[self.base(term)].append(f"output {number}")
        result: dict[Term, str] = {}
        for term in reversed(self.terms):
            result[term] = _digest(f"{inside[term]} {sorted(uses[term])}")
            if term.op == "sum":  # who stands in one product with it tells a factor from those of the others
                for monomial, _ in term.args[0]:
                    beside = _text(monomial, inside)
                    for factor, exponent in monomial:
                        uses[self.base(factor)].append(f"{exponent} {beside} {result[term]}")
                continue
            for place, part in enumerate(term.parts()):
                uses[self.base(part)].append(f"{_place_of(term, place)} {result[term]}")
        return result


class Bases(dict[Term, str]):
    """Colours of terms, each under what it is an arrangement of."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side

    def __missing__(self, term: Term) -> str:
        return self[self.side.base(term)]


def _role(term: Term, number: int) -> str:
    """Return the sizes of an operand of a contraction, and whether they are summed. Their order comes from names."""
    operands, out, sizes = term.args
    return str(sorted((str(sizes[n]), n in out) for labels in operands[number][1] for n in labels))


def _place_of(term: Term, place: int) -> str:
    if term.op in ("sum", *VIEWS) or (term.op == "each" and term.args[0] in SYMMETRIC):
        return ""
    return _role(term, place) if term.op in ("contract", "amax", "amin") else str(place)


def _text(value: Any, inside: Mapping[Term, str]) -> str:
    if isinstance(value, Term):
        return inside[value]
    if isinstance(value, tuple):
        return f"({','.join(_text(v, inside) for v in value)})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(_text(v, inside) for v in value))}}}"
    return str(value)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=9).hexdigest()
