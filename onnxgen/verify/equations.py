"""Equations between the dims of a graph that its operators require, and what they imply for named dims.

Names may be expressions ("past_sequence_length + 1"). Operators relate dims: the inner dims of a product are equal, and
operands of a sum have equal sizes along each axis, or 1. Equations are solved for named dims where possible. Sizes are
tested against the others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import onnx_ir as ir

from onnxgen.graph.catalogue import card
from onnxgen.graph.traits import BROADCASTS
from onnxgen.shapes.dims import Dim, Sym, TooComplex, apply, substitute, symbol, symbols
from onnxgen.shapes.equal import Equation, Shapes, broadcast, by_letters
from onnxgen.shapes.info import info

# ---- names that are expressions --------------------------------------------------------------------------------------

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: apply("floordiv", a, b),
}


def named(names: Iterable[str]) -> dict[str, Dim]:
    """Return the dim names that are expressions of other names, with those expressions."""
    plain = {name for name in names if name.isidentifier()}
    found: dict[str, Dim] = {}
    for name in names:
        if name in plain or len(name) > 200:
            continue
        with suppress(SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            dim = _dim(ast.parse(name, mode="eval").body)
            if symbols(dim).keys() <= plain:
                found[name] = dim
    return found


def _dim(tree: ast.expr) -> Dim:
    """Parse an expression of names and whole numbers; `floor(a / b)` is `a // b`. Raises ValueError for others."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in BINARY:
            made: Dim = BINARY[type(kind)](_dim(left), _dim(right))
            return made
        case ast.Call(func=ast.Name(id="floor"), args=[ast.BinOp(left=left, op=ast.Div(), right=right)]):
            return apply("floordiv", _dim(left), _dim(right))
        case ast.Call(func=ast.Name(id=("min" | "max" | "Min" | "Max") as function), args=args) if args:
            return apply(function.lower(), *map(_dim, args))
    raise ValueError("no size")


# ---- what operators require ------------------------------------------------------------------------------------------


def asked(nodes: Iterable[ir.Node]) -> Iterator[Equation]:
    """Yield the equations that the nodes of a graph require, as far as dims are known. Equal numbers are left out."""
    for node in nodes:
        shapes = [info(value).shape for value in node.inputs]
        with suppress(IndexError, TooComplex):
            for equation in _of_node(node, shapes):
                if equation.a != equation.b and not (isinstance(equation.a, int) and isinstance(equation.b, int)):
                    yield equation


def _of_node(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    known = card(node.domain, node.op_type)
    yield from by_letters(known, node, shapes)
    if known.rules.equal is not None:
        yield from known.rules.equal(node, shapes)
    elif BROADCASTS in known.traits and "broadcast" not in node.attributes:  # opsets 1 to 6 broadcast by another rule
        yield from broadcast([s for s in shapes if s is not None])


# ---- what follows ----------------------------------------------------------------------------------------------------


def solved(equations: Iterable[Equation], free: Mapping[str, int]) -> dict[str, Dim]:
    """Solve equations for named dims. Certain equations come first.

    Args:
        free: the names that equations are solved for, with their places in the order of inputs. Later names become
            expressions of earlier ones. Equations with other names are ignored.
    """
    found: dict[str, Dim] = {}
    for equation in sorted(equations, key=lambda e: e.or_one):
        with suppress(ArithmeticError, KeyError):
            current = equation.after(found)
            if current.or_one and 1 in (current.a, current.b):
                continue
            made = _solution(current, free)
            if made is not None:
                name, dim = made
                found = {known: substitute(d, {name: dim}) for known, d in found.items()} | {name: dim}
    return found


def _solution(equation: Equation, free: Mapping[str, int]) -> tuple[str, Dim] | None:
    """Return a name and the expression it must equal: the name that stands alone, or else the last one."""
    difference = equation.a - equation.b
    if not isinstance(difference, Sym) or not symbols(difference).keys() <= free.keys():
        return None
    best: tuple[tuple[bool, int], str, Dim] | None = None
    for name in symbols(difference):
        dim = _alone(difference, name)
        if dim is None or isinstance(dim, int) and dim < 1:
            continue
        stands = symbol(name) in (equation.a, equation.b)
        rank = (stands, free[name])
        if best is None or rank > best[0]:
            best = rank, name, dim
    return None if best is None else best[1:]


def _alone(difference: Sym, name: str) -> Dim | None:
    """Solve `difference == 0` for a symbol. Returns None if the solution is not a polynomial."""
    factor = 0
    for monomial, coefficient in difference.terms:
        if [(a.key, p) for a, p in monomial] == [(repr(name), 1)]:
            factor = coefficient
    if factor == 0:
        return None
    rest = difference - factor * symbol(name)
    if isinstance(rest, Sym) and name in symbols(rest):
        return None
    if isinstance(rest, int):
        return -rest // factor if rest % factor == 0 else None
    return rest * -factor if abs(factor) == 1 else None
