"""Compute the elements of operators that make, arrange or select elements, for numbers and symbolic dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.shapes.dims import Dim, Sym, nonnegative, product
from onnxgen.shapes.infer_layout import shape_slice
from onnxgen.shapes.infer_slice import slice_bounds
from onnxgen.shapes.node_facts import Array, NodeFacts, Unknown, as_objects, integer

Operation = Callable[..., Any]


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
