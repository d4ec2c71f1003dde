"""Where a module and the network of a file part, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from onnxgen.canonical.binding import Equation, Laid
from onnxgen.canonical.capture import Captured
from onnxgen.canonical.colours import Colours
from onnxgen.canonical.matching import below
from onnxgen.canonical.places import Place, place_of
from onnxgen.canonical.solving import Solver
from onnxgen.canonical.terms import Term
from onnxgen.canonical.values import Unknown


class Parting:
    """Finds where two networks part."""

    def __init__(
        self, both: tuple[Captured, Captured], colours: tuple[Colours, Colours], terms: Any, solver: Solver
    ) -> None:
        self.both, self.colours, self.solver = both, colours, solver

    def places(self, laid: Laid, failed: Sequence[Equation]) -> list[Place]:
        """Return the first line of the module that computes what the file has not, and that of the file."""
        structure = [self._first(1, 0), self._first(0, 1)]
        nodes = structure if structure[0] is not None else [self._noted(laid, failed), None]
        found = [place_of(n, s, "") if n is not None else None for n, s in zip(nodes, ("edited", "generated"))]
        return [place for place in found if place is not None]

    def _first(self, side: int, other: int) -> Node | None:
        """Return the first operator of a network that makes a value whose colour the other has not."""
        colours = self.colours[side]
        there = {self.colours[other].inside(t) for t in self.colours[other].terms}
        used = {*colours.terms}
        for term, node in self.both[side].places:
            if term in used and colours.inside(term) not in there:
                return node
        return None

    def _noted(self, laid: Laid, failed: Sequence[Equation]) -> Node | None:
        """Return the first operator of the module of those in which something is not as in the file."""
        order: dict[Term, tuple[int, Node]] = {}
        for number, (term, node) in enumerate(self.both[1].places):
            order.setdefault(term, (number, node))
        terms = [inside for *_, inside in laid.apart] + [equation.inside for equation in failed]
        found = [self._made(t, order) for t in terms if isinstance(t, Term)]
        return min((f for f in found if f is not None), key=lambda f: f[0], default=(0, None))[1]

    def _made(self, term: Term, order: dict[Term, tuple[int, Node]]) -> tuple[int, Node] | None:
        if term in order:
            return order[term]
        return max((order[part] for part in below([term]) if part in order), key=lambda f: f[0], default=None)

    def numbers(self, failed: Sequence[Equation]) -> str:
        """Say which number of the file is another one in the module."""
        for equation in failed:
            try:
                one = self.solver.given.of(equation.one)
                other = self.solver._values().of(equation.other)
            except Unknown:
                continue
            if one.numel() == other.numel() == 1 and not bool(other.isnan().any()):
                return f"{float(one):g} in the file is {float(other):g} in the module"
        return ""
