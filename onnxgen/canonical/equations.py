"""Equations between sizes: which sizes are the same where the questions of a module are answered as by its example.

They are linear; what is rounded or multiplied is a term of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import sympy

Linear: TypeAlias = dict[Any, Any]  # terms with their factors
SYMBOL = re.compile(r"\binput\d+_\d+\b")
SIZE = re.compile(r"L\[(\d+)\]\.size\(\)\[(\d+)\]")


def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a size."""
    return sympy.Symbol(name, integer=True, positive=True)


def solved(equations: Iterable[Any]) -> dict[Any, Any]:
    """Return terms, each with what it is in others. A term with the factor 1 or -1 is replaced: so sizes stay whole."""
    known: dict[Any, Any] = {}
    for equation in sorted(equations, key=str):
        form: Linear = replaced(equation.lhs - equation.rhs, known).as_coefficients_dict()
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


def follows(guard: str, known: Iterable[str]) -> bool:
    """Whether an equation of sizes is a linear combination of known ones; what is rounded or multiplied is a term."""
    wanted, rows = _linear(guard), [row for row in map(_linear, sorted(known)) if row is not None]
    if wanted is None or not rows:
        return False
    terms = sorted({term for row in (wanted, *rows) for term in row}, key=str)
    whole = sympy.Matrix([[row.get(term, 0) for term in terms] for row in (*rows, wanted)])
    return bool(whole[:-1, :].rank() == whole.rank())


def _linear(guard: str) -> Linear | None:
    """Return an equation as terms with their factors, whose sum is 0; None for what is no equation."""
    sides = SIZE.sub(r"input\1_\2", guard).split(" == ")
    try:
        parsed = [sympy.sympify(side, {n: symbol(n) for n in SYMBOL.findall(side)}) for side in sides]
        return dict(sympy.expand(parsed[0] - parsed[1]).as_coefficients_dict())
    except (sympy.SympifyError, IndexError, TypeError, AttributeError, NameError):
        return None
