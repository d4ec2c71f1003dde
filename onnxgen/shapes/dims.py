"""Tensor dims as exact integer expressions: `Dim = int | Sym`.

A `Sym` is a polynomial with integer coefficients over *atoms*, kept in one normal form, so that
equal expressions compare (and hash) equal: `(a*b)//b == a`, `s + 1 - 1 == s`, `(h - 1)//2 + 1 == (h
+ 1)//2`. A polynomial without atoms is a plain `int`. An atom is a `Symbol` (a dim that only the
caller's tensors know) or a `Call` (a function that no polynomial expresses). `==` is equality of
normal forms: `False` means "not provably equal".

Functions of a `Call`, all on exact integers:

    floordiv(a, b)       Python's `a // b`
    mod(a, b)            Python's `a % b`
    min(a, ...), max(a, ...)
    int_div(a, b)        division truncated toward zero (ONNX Div), where operands may be negative
    scale_size(n, f)     int(floor(float32(n) * float32(f))): a size scaled in float32 (ONNX Resize)

Expressions are bounded in size; arithmetic that would pass the bound raises `TooComplex`.

A dim is an exact integer, and ONNX's arithmetic is modulo 2**32 or 2**64. A formula of sizes is
that arithmetic as long as no size that occurs takes it past the type's range (`fits`). Otherwise
nothing is known of the element, and torch computes it in its type.

`readable` writes an expression for people: `2*seq + 1`, `(h - 1)//2 + 1`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxgen.shapes.expression import Atom, key_of
from onnxgen.shapes.expression import Call as Call
from onnxgen.shapes.expression import Dim as Dim
from onnxgen.shapes.expression import Monomial as Monomial
from onnxgen.shapes.expression import Sym as Sym
from onnxgen.shapes.expression import Symbol as Symbol
from onnxgen.shapes.expression import TooComplex as TooComplex
from onnxgen.shapes.expression import as_size as as_size
from onnxgen.shapes.expression import call as call
from onnxgen.shapes.expression import exact_div as exact_div
from onnxgen.shapes.expression import floordiv as floordiv
from onnxgen.shapes.expression import int_div as int_div
from onnxgen.shapes.expression import modulo as modulo
from onnxgen.shapes.expression import nonnegative as nonnegative
from onnxgen.shapes.expression import symbol as symbol


def known_less(a: Dim, b: Dim) -> bool:
    """Return True if a < b is proven for every value of the symbols."""
    return nonnegative(b - a - 1)


def known_different(a: Dim, b: Dim) -> bool:
    """Return True if a != b is proven for every value of the symbols."""
    return known_less(a, b) or known_less(b, a)


def _extreme(function: str, dims: tuple[Dim, ...]) -> Dim:
    flat: list[Dim] = []
    for dim in dims:
        atom = _only_atom(dim) if isinstance(dim, Sym) else None
        if isinstance(atom, Call) and atom.function == function:  # min(a, min(b, c)) is min(a, b, c)
            flat.extend(a for a in atom.args if not isinstance(a, float))
        else:
            flat.append(dim)
    kept: list[Dim] = []
    for dim in flat:
        if any(_beats(function, other, dim) for other in kept):
            continue
        kept = [other for other in kept if not _beats(function, dim, other)] + [dim]
    if len(kept) == 1:
        return kept[0]
    return call(function, *sorted(kept, key=lambda dim: (isinstance(dim, Sym), key_of(dim))))


def _only_atom(dim: Sym) -> Atom | None:
    """Return the atom that a dim consists of; None if it is a sum or product."""
    (monomial, coefficient), *rest = dim.terms
    is_single = not rest and coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1
    return monomial[0][0] if is_single else None


def _beats(function: str, a: Dim, b: Dim) -> bool:
    return nonnegative(b - a if function == "min" else a - b)


def dim_min(*dims: Dim) -> Dim:
    """Return the minimum of the dims. Dims that provably are not the minimum are left out."""
    return _extreme("min", dims)


def dim_max(*dims: Dim) -> Dim:
    """Return the maximum of the dims. Dims that provably are not the maximum are left out."""
    return _extreme("max", dims)


def scale_size(n: Dim, scale: float) -> Dim:
    """Return `int(floor(float32(n) * float32(scale)))` for n >= 0: the size that ONNX Resize computes from a scale."""
    scale = float32(scale)
    if isinstance(n, int):
        return math.floor(float32(float32(n) * scale))
    if scale > 0 and math.frexp(scale)[0] == 0.5:  # a power of two scales every size below 2**24 exactly
        return n * int(scale) if scale >= 1 else floordiv(n, int(1 / scale))
    return call("scale_size", n, scale)


def float32(value: float) -> float:
    """Round to float32. A product of two float32 is exact in float64, so it is rounded only once."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of the dims; 1 if there are none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


# ------------------------------------------------------------------------------------------------ walk, evaluate


def atoms(dim: Dim | float) -> Iterator[Atom]:
    """Yield each occurrence of each atom in the dim; arguments of a call come before the call."""
    for monomial, _ in dim.terms if isinstance(dim, Sym) else ():
        for atom, _ in monomial:
            if isinstance(atom, Call):
                for arg in atom.args:
                    yield from atoms(arg)
            yield atom


def symbols(dim: Dim) -> dict[str, Symbol]:
    """Return the symbols of the dim by name."""
    return {atom.name: atom for atom in atoms(dim) if isinstance(atom, Symbol)}


def is_symbol(dim: Dim) -> bool:
    """Return True if the dim is a name alone."""
    return isinstance(dim, Sym) and any(dim == symbol(name) for name in symbols(dim))


def apply(function: str, *args: Dim | float) -> Dim:
    """Return `function(*args)` in normal form, named as in `Call`. Raises `KeyError` for unknown functions."""
    if function == "scale_size":
        n, scale = args
        assert not isinstance(n, float)
        return scale_size(n, float(scale) if not isinstance(scale, Sym) else math.nan)
    dims = [a for a in args if not isinstance(a, float)]
    if function in ("min", "max"):
        return _extreme(function, tuple(dims))
    a, b = dims
    return {"floordiv": floordiv, "mod": modulo, "int_div": int_div}[function](a, b)


def substitute(dim: Dim, mapping: Mapping[str, Dim]) -> Dim:
    """Replace symbols in a dim. `mapping` maps symbol names to their replacements."""
    if not isinstance(dim, Sym):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom, power in monomial:
            term = term * product([_substitute_atom(atom, mapping)] * power)
        total = total + term
    return as_size(total) if nonnegative(dim) else total


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dim]) -> Dim:
    if isinstance(atom, Symbol):
        replacement = mapping.get(atom.name)
        return Sym(((((atom, 1),), 1),)) if replacement is None else replacement
    return apply(atom.function, *(a if isinstance(a, float) else substitute(a, mapping) for a in atom.args))


def _power(part: tuple[Atom, int], values: Mapping[str, int]) -> int:
    atom, power = part
    if isinstance(atom, Symbol):
        base: Dim = values[atom.name]
    else:
        base = apply(atom.function, *(a if isinstance(a, float) else evaluate(a, values) for a in atom.args))
    assert not isinstance(base, Sym), "a function of numbers is a number"
    return math.prod([base] * power)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Compute a dim as a number, given the value of every symbol by name. Raises `KeyError` if one is missing."""
    if not isinstance(dim, Sym):
        return dim
    try:
        return sum(factor * math.prod(_power(p, values) for p in monomial) for monomial, factor in dim.terms)
    except KeyError:
        result = substitute(dim, values)
    if isinstance(result, Sym):
        raise KeyError(", ".join(symbols(result)))
    return result


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


def readable(dim: Dim | float) -> str:
    if not isinstance(dim, Sym):
        return str(dim)
    parts: list[str] = []
    for monomial, coefficient in _tidy(dim):
        alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and bool(parts)))
        body = "*".join(atom_text(a, alone) if p == 1 else f"{atom_text(a, False)}**{p}" for a, p in monomial)
        number = abs(coefficient)
        body = str(number) if not body else body if number == 1 else f"{number}*{body}"
        if not parts:
            parts.append(f"-{body}" if coefficient < 0 else body)
        else:
            parts.append(f"{'-' if coefficient < 0 else '+'} {body}")
    return " ".join(parts)


def _tidy(dim: Sym) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms with constants moved into divisions: `(h + 1)//2 - 1` becomes `(h - 1)//2`."""
    *terms, (last, constant) = dim.terms
    if last:
        return dim.terms
    for i, (monomial, coefficient) in enumerate(terms):
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], Call):
            function, args = monomial[0][0].function, monomial[0][0].args
            if function == "floordiv" and isinstance(args[1], int) and not isinstance(args[0], float):
                moved = Call(function, (args[0] + constant * args[1], args[1]))
                return (*terms[:i], (((moved, 1),), 1), *terms[i + 1 :])
    return dim.terms


def atom_text(atom: Atom, alone: bool) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if atom.function in ("floordiv", "mod"):
        left, right = (readable(a) if _simple(a) else f"({readable(a)})" for a in atom.args)
        text = f"{left}{'//' if atom.function == 'floordiv' else ' % '}{right}"
        return text if alone else f"({text})"
    return f"{atom.function}({', '.join(map(readable, atom.args))})"


def _simple(dim: Dim | float) -> bool:
    """Return True if the text of the dim needs no parentheses as an operand of a division."""
    if not isinstance(dim, Sym):
        return True
    atom = _only_atom(dim)
    return isinstance(atom, Symbol) or (atom is not None and atom.function not in ("floordiv", "mod"))
