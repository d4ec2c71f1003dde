"""Compute the elements of arithmetic, comparisons and reductions with ONNX's semantics, for numbers and for dims.

Numbers are computed in the tensor's own dtype (int32 wraps, float32 rounds). An object array holds dims. An operation
that dims cannot express raises `Unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from onnxgen.graph.traits import BROADCASTS, COMPARISON, REDUCTION, Trait
from onnxgen.shapes.dims import (
    dim_max,
    dim_min,
    known_different,
    known_less,
    modulo,
    nonnegative,
)
from onnxgen.shapes.infer_math import reduced_axes
from onnxgen.shapes.node_facts import Array, NodeFacts, Unknown, as_objects

Operation = Callable[..., Any]


def objects(function: Operation, *arrays: Array) -> Array:
    """Make a function that applies `function` elementwise to object arrays, with broadcasting."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*map(as_objects, arrays)), object)


def of_kind(traits: Collection[Trait], number: Operation, dims: Operation | None) -> Operation | None:
    """Make the evaluator of an operator from what it computes of numbers, and of dims (None: it cannot)."""
    if REDUCTION in traits and dims is None:
        return None
    kinds = {COMPARISON: _comparing, BROADCASTS: folded, REDUCTION: _reducing}
    make = next((make for trait, make in kinds.items() if trait in traits), _unary)
    return make(number, dims or undefined)


def folded(number: Operation, dims: Operation) -> Operation:
    """Make the evaluator of an operator with one or more inputs: `number` for numeric arrays, `dims` for elements."""

    def run(n: NodeFacts, first: Array, *rest: Array) -> list[Array]:
        for array in rest:
            if first.dtype == object or array.dtype == object:
                first = objects(dims, first, array)
            else:
                first = np.asarray(number(first, array))
        return [first]

    return run


def quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    if not b.all():
        raise Unknown("division by zero")
    quotient = a // b
    return np.asarray(quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0))).astype(a.dtype), a.dtype)


def mod(n: NodeFacts, a: Array, b: Array) -> list[Array]:
    fmod = n.int_("fmod")
    if a.dtype == object or b.dtype == object:
        if fmod and not all(nonnegative(d) for d in (*as_objects(a).flat, *as_objects(b).flat)):
            raise Unknown("the remainder of a dim that may be negative")
        return [objects(modulo, a, b)]
    if a.dtype.kind in "iu" and not b.all():
        raise Unknown("modulo zero")
    return [np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))]


def power(n: NodeFacts, a: Array, b: Array) -> list[Array]:
    if b.dtype == object or (a.dtype.kind in "iu" and (b < 0).any()):
        raise Unknown("the exponent")
    if a.dtype == object:
        if b.dtype.kind not in "iu" or (b > 4).any():
            raise Unknown("the exponent")
        return [objects(lambda x, p: math.prod([x] * int(p)), a, b)]
    return [np.power(a, b.astype(a.dtype) if b.dtype.kind == a.dtype.kind else b).astype(a.dtype)]


def less(a: Any, b: Any) -> bool:
    if known_less(a, b):
        return True
    if nonnegative(a - b):
        return False
    raise Unknown("which dim is the smaller one")


def equal(a: Any, b: Any) -> bool:
    if a == b:
        return True
    if known_different(a, b):
        return False
    raise Unknown("whether two dims are equal")


def _comparing(number: Operation, dims: Operation) -> Operation:
    def run(n: NodeFacts, a: Array, b: Array) -> list[Array]:
        if a.dtype == object or b.dtype == object:
            return [objects(dims, a, b).astype(bool)]
        return [np.asarray(number(a, b))]

    return run


def _unary(number: Operation, dims: Operation) -> Operation:
    def run(n: NodeFacts, a: Array) -> list[Array]:
        if a.dtype == object:
            return [objects(dims, a)]
        found = np.asarray(number(a))
        return [found if found.dtype == bool else found.astype(a.dtype)]

    return run


def absolute(d: Any) -> Any:
    return abs(d) if isinstance(d, int) else d if nonnegative(d) else dim_max(d, -d)


def sign(d: Any) -> int:
    return (d > 0) - (d < 0) if isinstance(d, int) else int(less(0, d))


def clip(n: NodeFacts, a: Array, *bounds: Array | None) -> list[Array]:
    if len(bounds) > 2 or n.opset < 11:
        raise Unknown("bounds")
    for bound, number, dims in zip(bounds, (np.maximum, np.minimum), (dim_max, dim_min), strict=False):
        if bound is not None:
            symbolic = a.dtype == object or bound.dtype == object
            a = objects(dims, a, bound) if symbolic else np.asarray(number(a, bound))
    return [a]


def _reducing(number: Operation, dims: Operation) -> Operation:
    def run(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
        axes, keep = tuple(reduced_axes(n, a.ndim)), bool(n.int_("keepdims", 1))
        if a.dtype != object:
            found = np.asarray(number(a, axis=axes, keepdims=keep))
            if found.dtype.kind != a.dtype.kind:
                raise Unknown("a float of integers")
            return [found.astype(a.dtype)]
        for axis in sorted(axes, reverse=True):
            a = np.asarray(np.frompyfunc(dims, 2, 1).reduce(a, axis=axis, keepdims=keep), object)
        return [a]

    return run


def position(function: Operation) -> Operation:
    def run(n: NodeFacts, a: Array) -> list[Array]:
        if a.dtype == object:
            raise Unknown("the greatest of several dims")
        axis = n.axis(a.ndim)
        last = n.int_("select_last_index")
        found = function(np.flip(a, axis) if last else a, axis=axis, keepdims=bool(n.int_("keepdims", 1)))
        return [np.asarray(a.shape[axis] - 1 - found if last else found, np.int64)]

    return run


def cumsum(n: NodeFacts, a: Array, axis: Array) -> list[Array]:
    if axis.dtype == object or axis.size != 1:
        raise Unknown("the axis")
    (along,) = n.axes([int(axis.flat[0])], a.ndim)
    a = np.flip(a, along) if n.int_("reverse") else a
    total = np.cumsum(a, axis=along, dtype=a.dtype)
    total = total - a if n.int_("exclusive") and a.dtype.kind in "iuO" else total
    if n.int_("exclusive") and a.dtype.kind == "f":
        raise Unknown("exclusive sums of floats")
    return [np.flip(total, along) if n.int_("reverse") else total]


def undefined(*dims: Any) -> Any:
    """What operators compute that have no meaning for dims."""
    raise Unknown("dims have no such function")
