"""Integers that wrap: whether a size, as an element of an integer tensor, stays within the tensor's type.

A dim is an exact integer, and ONNX's arithmetic is modulo 2**32 or 2**64. A formula of sizes is that arithmetic as long
as no size that occurs takes it past the type's range. Otherwise nothing is known of the element, and torch computes it
in its type.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.shapes.dims import Dim, Sym, Symbol, nonnegative
from onnxgen.shapes.expression import Atom

LARGEST = 2.0**20  # a size, or a product of sizes, that is counted on. A factor below 2**11 keeps it within int32.


def fits(dim: Dim, dtype: ir.DataType) -> bool:
    """Return True if a dim is within an integer type for all sizes, and products of sizes, up to `LARGEST`."""
    limits = np.iinfo(dtype.numpy())
    if not isinstance(dim, Sym):
        return bool(limits.min <= dim <= limits.max)
    return bound(dim) <= float(limits.max) and (limits.min < 0 or nonnegative(dim))


def bound(dim: Dim | float) -> float:
    """Return the largest absolute value that a dim takes if each product of its sizes is at most `LARGEST`."""
    if not isinstance(dim, Sym):
        return abs(float(dim))
    total = 0.0
    for monomial, coefficient in dim.terms:
        term = LARGEST if monomial else 1.0
        for atom, power in monomial:
            term *= (_bound_of_atom(atom) / LARGEST) ** power
        total += abs(coefficient) * term
    return total


def _bound_of_atom(atom: Atom) -> float:
    if isinstance(atom, Symbol):
        return LARGEST
    bounds = [bound(arg) for arg in atom.args]
    if atom.function in ("floordiv", "int_div"):
        return bounds[0] / (bounds[1] if isinstance(atom.args[1], int) else 1.0) + 1.0
    if atom.function == "mod":
        return min(bounds) if all(nonnegative(a) for a in atom.args if not isinstance(a, float)) else bounds[1]
    return bounds[0] * bounds[1] if atom.function == "scale_size" else max(bounds)
