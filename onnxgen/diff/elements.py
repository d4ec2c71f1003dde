"""Compute the tensors that a walk has bound: terms that depend on parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from onnxgen.canonical.terms import Term
from onnxgen.canonical.views import Pattern


class Unknown(Exception):
    """A term has no value: it depends on inputs, or on an operator that is not known here."""


def value(term: Term, leaves: Mapping[str, Tensor]) -> Tensor:
    """Return the elements of a term. `leaves`: those of parameters and buffers, by path. Raises `Unknown`."""
    known: dict[Term, Tensor] = {}

    def of(part: Term) -> Tensor:
        if part not in known:
            known[part] = _computed(part, of, leaves)
        return known[part]

    return of(term)


def _computed(term: Term, of: Callable[[Term], Tensor], leaves: Mapping[str, Tensor]) -> Tensor:
    match term.op:
        case "parameter" | "frozen":
            return leaves[term.args[0]]
        case "view":
            return viewed(of(term.args[0]), term.args[1])
        case "reshape":
            return of(term.args[0]).reshape(term.shape)
        case "expand":
            return of(term.args[0]).expand(term.shape)
        case "slice":
            base, axis, start, stop, step = term.args
            index = [slice(None)] * len(base.shape)
            index[axis] = slice(start, stop, step)
            return of(base)[tuple(index)]
        case "cat":
            return torch.cat([of(piece) for piece in term.args[0]], term.args[1])
        case "sum":
            return _sum(term, of)
        case "each" if term.args[0] in EACH:
            made: Tensor = EACH[term.args[0]](*(of(part) for part in term.args[2:]), *term.args[1])
            return made
    raise Unknown(term.op)


EACH: dict[str, Any] = {
    "power": lambda x, exponent: x**exponent,
    "cast": lambda x, name: x.to(getattr(torch, name)),
    "exp": torch.exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def viewed(tensor: Tensor, pattern: Pattern) -> Tensor:
    atoms = [size for axis in pattern.atoms for size in axis]
    split = tensor.reshape(atoms).permute([n for group in pattern.groups for n in group])
    return split.reshape(pattern.shape)


def _sum(term: Term, of: Any) -> Tensor:
    total: Tensor = torch.zeros((), dtype=torch.float64 if "float" in term.dtype else torch.int64)
    for monomial, coefficient in term.args[0]:
        part: Any = coefficient
        for factor, exponent in monomial:
            part = part * of(factor) ** exponent
        total = total + part
    return total.expand(term.shape) if total.shape != term.shape else total
