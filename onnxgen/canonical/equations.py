"""Equations between sizes: which sizes are the same where the questions of a module are answered as by its example.

They are linear; what is rounded or multiplied is a term of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy


def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a size."""
    return sympy.Symbol(name, integer=True, positive=True)


def solved(equations: Iterable[Any]) -> dict[Any, Any]:
    """Return terms, each with what it is in others. A term with the factor 1 or -1 is replaced: so sizes stay whole."""
    known: dict[Any, Any] = {}
    for equation in sorted(equations, key=str):
        form = replaced(equation.lhs - equation.rhs, known).as_coefficients_dict()
        terms = [term for term, factor in form.items() if term != 1 and abs(factor) == 1]
        if not terms:
            continue
        chosen = max(terms, key=lambda term: (len(str(term)), str(term)))
        rest = sympy.Add(*(-factor * term / form[chosen] for term, factor in form.items() if term != chosen))
        if not rest.has(chosen):
            known = {term: replaced(value, {chosen: rest}) for term, value in known.items()} | {chosen: rest}
    return known


def replaced(size: Any, known: Mapping[Any, Any]) -> Any:
    """Return a size in other terms."""
    return sympy.expand(size.xreplace(known)) if known else sympy.expand(size)


def follows(equation: Any, known: Iterable[Any]) -> bool:
    """Whether an equation is a linear combination of known ones. Of each, what is 0."""
    forms = [dict(sympy.expand(left).as_coefficients_dict()) for left in (*known, equation)]
    terms = sorted({term for form in forms for term in form}, key=str)
    whole = sympy.Matrix([[form.get(term, 0) for term in terms] for form in forms])
    return bool(whole[:-1, :].rank() == whole.rank())
