"""Where a module and the network of a file part, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.fx import Node

from onnxgen.canonical.binding import Equation, Laid
from onnxgen.canonical.capture import Captured
from onnxgen.canonical.colours import Colours
from onnxgen.canonical.matching import below
from onnxgen.canonical.places import Place, place_of
from onnxgen.canonical.terms import number_in


class Parting:
    """Finds where two networks part."""

    def __init__(self, both: tuple[Captured, Captured], colours: tuple[Colours, Colours]) -> None:
        self.both, self.colours, self.is_alike = both, colours, False

    def places(self, laid: Laid, failed: Sequence[Equation]) -> list[Place]:
        """Return the first line of the module that computes what the file has not, and that of the file."""
        nodes = [self._first(1, 0), self._first(0, 1)]
        self.is_alike = nodes[0] is None
        if self.is_alike:
            nodes = [self._noted(laid, failed), None]
        found = [place_of(n, s, "") if n is not None else None for n, s in zip(nodes, ("edited", "generated"))]
        return [place for place in found if place is not None]

    def _first(self, side: int, other: int) -> Node | None:
        """Return the first operator of a network that makes a value whose colour the other has not.

        That is the first of those that lead, one by one, to a value of the canonical form that the other has not.
        """
        mine, theirs = self.colours[side], self.colours[other]
        there = {theirs.inside(t) for t in theirs.terms}
        made = {theirs.inside(t) for t, _ in self.both[other].places if not theirs.is_still(t)}
        used = {t for t in mine.terms if mine.inside(t) not in there}
        strange = {n for t, n in self.both[side].places if not mine.is_still(t) and mine.inside(t) not in made | there}
        reached = {n for t, n in self.both[side].places if t in used}
        todo = list(reached)
        while todo:
            new = [n for n in todo.pop().all_input_nodes if n in strange and n not in reached]
            reached |= {*new}
            todo += new
        return next((n for _, n in self.both[side].places if n in reached), None)

    def _noted(self, laid: Laid, failed: Sequence[Equation]) -> Node | None:
        """Return the first operator of the module that makes something of what is not as in the file."""
        wrong = {inside for *_, inside in laid.apart} | {equation.inside for equation in failed}
        places = self.both[1].places
        for term in below(term for term, _ in places):
            if term not in wrong and any(part in wrong for part in term.parts()):
                wrong.add(term)
        return next((node for term, node in places if term in wrong), None)

    def numbers(self, failed: Sequence[Equation]) -> str:
        """Say which number of the file is another one in the module, if they are alike but for such."""
        for equation in failed if self.is_alike else ():
            one, other = number_in(equation.one), number_in(equation.other)
            if one is not None and other is not None and not math.isclose(one, other, rel_tol=1e-5):
                return f"{one:g} in the file is {other:g} in the module"
        return ""
