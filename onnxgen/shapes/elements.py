"""Compute the elements of a node's outputs from its inputs', for numbers and symbolic dims alike.

Numbers are computed in the tensor's own dtype (int32 wraps, float32 rounds), with ONNX's semantics.
An object array holds dims. An operation that dims cannot express raises `Unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import Operator, card
from onnxgen.graph.traits import BROADCASTS, COMPARISON, REDUCTION
from onnxgen.shapes.dims import (
    Dim,
    Sym,
    dim_max,
    dim_min,
    fits,
    known_different,
    known_less,
    modulo,
    nonnegative,
    product,
)
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.infer_layout import shape_slice, slice_bounds
from onnxgen.shapes.infer_math import reduced_axes
from onnxgen.shapes.info import NONSENSE, Array, Info, NodeFacts, Unknown, as_objects, integer, numbers_if_possible

Operation = Callable[..., Any]


def objects(function: Operation, *arrays: Array) -> Array:
    """Make a function that applies `function` elementwise to object arrays, with broadcasting."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*map(as_objects, arrays)), object)


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
        result = np.asarray(number(a))
        return [result if result.dtype == bool else result.astype(a.dtype)]

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
            reduced = np.asarray(number(a, axis=axes, keepdims=keep))
            if reduced.dtype.kind != a.dtype.kind:
                raise Unknown("a float of integers")
            return [reduced.astype(a.dtype)]
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
        index = function(np.flip(a, axis) if last else a, axis=axis, keepdims=bool(n.int_("keepdims", 1)))
        return [np.asarray(a.shape[axis] - 1 - index if last else index, np.int64)]

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


def _array(dims: list[Dim]) -> Array:
    result = np.empty(len(dims), object)
    result[:] = dims
    return result


def _ints(array: Array) -> Array:
    """Return indices or sizes as numbers. Raises `Unknown` if one is symbolic."""
    if any(isinstance(d, Sym) for d in array.flat):
        raise Unknown("indices or sizes in numbers")
    return array.astype(np.int64)


def shape(n: NodeFacts, *_: Array) -> list[Array]:
    return [_array(list(n.shape(0)[shape_slice(n)]))]


def size(n: NodeFacts, *_: Array) -> list[Array]:
    maker = n.node.inputs[0].producer() if n.node.inputs[0] is not None else None
    if maker is not None and maker.op_type == "Shape" and isinstance(n.shape(0)[0], Sym):
        raise Unknown("the rank of a tensor, which is the size of no axis")
    return [_array([product(n.shape(0))]).reshape(())]


def _output_shape(n: NodeFacts, output: int = 0) -> list[int]:
    """Return the inferred shape as numbers. Raises `Unknown` if a dim is symbolic."""
    shape = n.inferred[output].shape
    if shape is None or any(isinstance(d, Sym) for d in shape):
        raise Unknown("the shape of the output")
    return [d for d in shape if isinstance(d, int)]


def reshape(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
    return [a.reshape(_output_shape(n))]


flatten = squeeze = unsqueeze = reshape


def expand(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
    return [np.broadcast_to(a, _output_shape(n))]


def cast(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
    to = n.inferred[0].dtype
    if to is None or to in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise Unknown("the new type")
    if a.dtype == object:
        if to.is_integer() and to.bitwidth >= 32 and all(nonnegative(d) for d in a.flat):  # sizes stay below 2**31
            return [a]
        if to == ir.DataType.INT64 and integer(n.dtype(0)):
            return [a]
        raise Unknown("a dim in another type")
    if to.is_floating_point() and to.bitwidth < 16:
        raise Unknown("rounding to eight bits or less, which saturates")
    if a.dtype.kind == "f" and to.is_integer() and not _fits(a, to):
        raise Unknown("a float that its integer type cannot hold")
    return [a.astype(to.numpy())]


cast_like = cast


def _fits(a: Array, to: ir.DataType) -> bool:
    limits = np.iinfo(to.numpy())
    return bool(np.isfinite(a).all() and (a > float(limits.min) - 1).all() and (a < float(limits.max)).all())


def transpose(n: NodeFacts, a: Array) -> list[Array]:
    return [a.transpose(n.ints("perm"))]


def concat(n: NodeFacts, *arrays: Array) -> list[Array]:
    if any(a.dtype == object for a in arrays):
        arrays = tuple(map(as_objects, arrays))
    return [np.concatenate(arrays, axis=n.int_("axis", 1))]


def split(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
    axis = n.axis(a.ndim)
    sizes = [_output_shape(n, i)[axis] for i in range(len(n.inferred))]
    if sum(sizes) != a.shape[axis]:
        raise Unknown("parts that do not add up")
    return np.split(a, np.cumsum(sizes)[:-1], axis)


def slices(n: NodeFacts, a: Array, *_: Array) -> list[Array]:
    index: list[slice] = [slice(None)] * a.ndim
    for start, end, axis, step in zip(*slice_bounds(n), strict=True):
        if isinstance(start, Sym) or isinstance(end, Sym):
            raise Unknown("the bounds")
        if step < 0:  # as in `slice_length`
            start = max(start, -a.shape[axis])
        index[axis] = slice(start, None if step < 0 and end < -a.shape[axis] else end, step)
    return [a[tuple(index)]]


def gather(n: NodeFacts, a: Array, indices: Array) -> list[Array]:
    axis = n.axis(a.ndim)
    wanted = _ints(indices)
    return [np.take(a, np.where(wanted < 0, wanted + a.shape[axis], wanted), axis)]


def _along_axis(n: NodeFacts, a: Array, indices: Array) -> tuple[Array, ...]:
    """Return the index of the elements that GatherElements and ScatterElements select."""
    where: list[Array] = list(np.indices(indices.shape))
    where[n.axis(a.ndim)] = _ints(indices)
    return tuple(where)


def _by_rows(n: NodeFacts, a: Array, indices: Array) -> tuple[Array, ...]:
    """Return the index of the slices that GatherND and ScatterND select."""
    if n.int_("batch_dims"):
        raise Unknown("batches")
    return tuple(np.moveaxis(_ints(indices), -1, 0))


def _gathering(where: Operation) -> Operation:
    return lambda n, a, indices: [a[where(n, a, indices)]]


def _scattering(where: Operation) -> Operation:
    def run(n: NodeFacts, a: Array, indices: Array, updates: Array) -> list[Array]:
        if n.str_("reduction", "none") != "none":
            raise Unknown("a reduction")
        symbolic = a.dtype == object or updates.dtype == object
        result = as_objects(a).copy() if symbolic else a.copy()
        result[where(n, a, indices)] = as_objects(updates) if symbolic else updates
        return [result]

    return run


gather_elements, gather_nd = _gathering(_along_axis), _gathering(_by_rows)
scatter_elements, scatter_nd = _scattering(_along_axis), _scattering(_by_rows)


def where(n: NodeFacts, condition: Array, a: Array, b: Array) -> list[Array]:
    if a.dtype == object or b.dtype == object:
        a, b = as_objects(a), as_objects(b)
    return [np.where(condition, a, b)]


def ranged(n: NodeFacts, start: Array, limit: Array, delta: Array) -> list[Array]:
    (length,) = _output_shape(n)
    if start.dtype != object and delta.dtype != object:
        steps = np.arange(length, dtype=start.dtype)
        return [np.asarray(start.reshape(()) + steps * delta.reshape(()), start.dtype)]
    first, step = start.flat[0], delta.flat[0]
    return [_array([first + i * step for i in range(length)])]


def constant_of_shape(n: NodeFacts, *_: Array) -> list[Array]:
    value = n.node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy().reshape(-1)
    return [np.full(_output_shape(n), fill[0], fill.dtype)]


def tile(n: NodeFacts, a: Array, repeats: Array) -> list[Array]:
    _output_shape(n)  # small enough
    return [np.tile(a, _ints(repeats))]


def trilu(n: NodeFacts, a: Array, *k: Array) -> list[Array]:
    if a.dtype == object:
        raise Unknown("dims")
    return [(np.triu if n.int_("upper", 1) else np.tril)(a, int(_ints(k[0]).flat[0]) if k else 0)]


def eye_like(n: NodeFacts, *_: Array) -> list[Array]:
    dtype = n.inferred[0].dtype
    if dtype is None:
        raise Unknown("the dtype")
    rows, columns = _output_shape(n)
    return [np.eye(rows, columns, n.int_("k"), dtype.numpy())]


def non_zero(n: NodeFacts, a: Array) -> list[Array]:
    if a.dtype == object:
        raise Unknown("which dims are 0")
    return [np.array(np.nonzero(np.atleast_1d(a)), np.int64)]


def one_hot(n: NodeFacts, indices: Array, depth: Array, values: Array) -> list[Array]:
    _output_shape(n)  # small enough
    size = int(_ints(depth).item())
    wanted = _ints(indices)
    wanted = np.where(wanted < 0, wanted + size, wanted)
    hot = np.expand_dims(wanted, -1) == np.arange(size)
    return [np.moveaxis(np.where(hot, values[1], values[0]), -1, n.axis(indices.ndim + 1, -1))]


MAX_EVALUATED_ELEMENTS = 65_536  # a result with more elements is not computed


def evaluate(n: NodeFacts, limit: int) -> list[Info]:
    """Return `n.inferred` with the elements that can be computed, at most `limit` of them. Never raises."""
    known = card(n.node.domain, n.op)
    operation = operation_of(known)
    if operation is None or n.node.domain not in STANDARD:
        return n.inferred
    asked = n.inputs[: known.rules.reads]
    if any(i is not None and i.data is None for i in asked):
        return n.inferred
    if not all(_small(facts, min(limit, MAX_EVALUATED_ELEMENTS)) for facts in n.inferred[:1]):
        return n.inferred
    try:
        with np.errstate(all="ignore"):
            inputs = [None if i is None else i.data for i in asked]
            computed = [_with_data(f, np.asarray(d)) for f, d in zip(n.inferred, operation(n, *inputs), strict=False)]
    except NONSENSE:
        return n.inferred
    return computed + n.inferred[len(computed) :]


@cache
def operation_of(known: Operator) -> Operation | None:
    """Return what computes the elements of an operator's outputs; None if nothing does.

    It is made of what the operator computes of numbers, and of dims (None: it cannot), or a rule of its own.
    """
    rules = known.rules
    if rules.elements is not None or rules.numbers is None:
        return rules.elements
    if REDUCTION in known.traits and rules.dims is None:
        return None
    kinds = {COMPARISON: _comparing, BROADCASTS: folded, REDUCTION: _reducing}
    make = next((make for trait, make in kinds.items() if trait in known.traits), _unary)
    return make(rules.numbers, rules.dims or undefined)


def _small(facts: Info, limit: int) -> bool:
    """Return True if a value has at most `limit` elements. A dim that is no number is bounded by the inputs."""
    return facts.shape is not None and math.prod(d for d in facts.shape if not isinstance(d, Sym)) <= limit


def _with_data(facts: Info, data: Array) -> Info:
    """Add elements to the facts, if they agree with the inferred dtype and shape."""
    elements = numbers_if_possible(data, facts.dtype)
    if elements is None or facts.dtype is None or facts.dtype == ir.DataType.STRING:
        return facts
    if elements.dtype == object and facts.dtype.is_integer() and not all(fits(d, facts.dtype) for d in elements.flat):
        return facts
    if elements.dtype != object and elements.dtype != facts.dtype.numpy():
        return facts
    shape = facts.shape
    if shape is not None and (
        len(shape) != elements.ndim
        or any(isinstance(d, int) and d != size for d, size in zip(shape, elements.shape, strict=True))
    ):
        return facts
    elements = np.array(elements)  # a private copy
    elements.flags.writeable = False
    return replace(facts, shape=elements.shape, data=elements)
