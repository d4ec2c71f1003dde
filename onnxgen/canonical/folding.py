"""Terms of a network with inputs of known sizes: what depends on no input and no parameter is a constant."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from onnxgen.canonical.arranging import constant
from onnxgen.canonical.capture import Reader
from onnxgen.canonical.terms import Term, number_in
from onnxgen.canonical.values import LEAVES, Unknown, Values


class FoldingReader(Reader):
    """Reads an exported program, and computes what can be computed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values = Values(self.terms, {})
        self.fixed: dict[Term, bool] = {}

    def _called(self, node: Node, values: Any) -> Any:
        made = super()._called(node, values)
        if isinstance(made, tuple):
            return tuple(self._folded(part) for part in made)
        return self._folded(made)

    def _folded(self, term: Any) -> Any:
        """Return the constant that a term is, if it is one. What matters for gradients alone is left out."""
        if isinstance(term, Term) and term.op == "detach":
            return term.args[0]
        if isinstance(term, Term) and term.op == "view":
            base = self._plainly_indexed(term.args[0])
            term = term if base is term.args[0] else self.terms.rearranged(base, term.args[1])
        elif isinstance(term, Term):
            term = self._plainly_indexed(term)
        if not isinstance(term, Term) or not self._is_fixed(term) or term.op == "constant":
            return term
        if number_in(term) is not None or term.dtype == "tuple":
            return term
        try:
            value = self.values.of(term)
        except Unknown:
            return term
        if value.is_floating_point() or not value.dtype.is_complex:
            value = value.to(_dtype(term.dtype))
        return constant(self.terms, value.reshape(term.shape))

    def _plainly_indexed(self, term: Term) -> Term:
        if term.op != "call" or term.args[0] != "aten::index.Tensor":
            return term
        indices = tuple(_counted(i, size) for i, size in zip(term.args[2], term.args[1].shape))
        return self.terms.term("call", (*term.args[:2], indices), term.shape, term.dtype)

    def _is_fixed(self, term: Term) -> bool:
        known = self.fixed.get(term)
        if known is None:
            drawn = term.op == "call" and any(isinstance(a, tuple) and a[:1] == ("drawn",) for a in term.args)
            is_moving = term.op in ("input", "size", *LEAVES) or drawn
            known = self.fixed[term] = not is_moving and all(self._is_fixed(part) for part in term.parts())
        return known


def _counted(index: Any, size: Any) -> Any:
    """Return an index without the case that numbers below 0 count from the end: indexing knows it."""
    if not isinstance(index, Term) or index.op != "each" or index.args[0] != "where":
        return index
    _, _, condition, one, other = index.args
    if condition.op != "each" or condition.args[0] != "lt" or condition.args[2] is not other:
        return index
    if number_in(condition.args[3]) != 0 or one.op != "sum":
        return index
    items, mine = dict(one.args[0]), dict(other.args[0]) if other.op == "sum" else {frozenset({(other, 1)}): 1}
    apart = {m: items.get(m, 0) - mine.get(m, 0) for m in (*items, *mine)}
    return other if {m: n for m, n in apart.items() if n} == {frozenset(): size} else index


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
