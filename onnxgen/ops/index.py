"""Operators that pick elements by position (Gather, Slice, Scatter), and Python's own indexing.

`subscript` writes `x[:, 0]`, `x[..., -1]`, `x[:, 1:-1]`. `never_negative` proves from the graph
that an integer tensor has no negative elements, which Python would count from the end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import OMIT, literal, unless
from onnxgen.errors import CHECK, FIX_SHAPE
from onnxgen.graph.annotations import PADDING
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import is_a, known, op
from onnxgen.graph.traits import KEEPS_SIGN, MOVES, PASSES_ON, SELECTS, STRIDES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.lowering.from_sizes import Sized, each
from onnxgen.ops.cast import BITS, computed, flipped, moved
from onnxgen.ops.linear import layer
from onnxgen.ops.rules import rules
from onnxgen.passes.roles import padding_row
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import own
from onnxgen.shapes.dims import Dim, dim_min, nonnegative
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

FULL = ast.Slice()


def subscript(x: Arg | ast.expr, items: Mapping[int, Any], rank: int | None = None) -> ast.expr:
    """Return `x[...]` with an item (a number, a tensor or a slice) for each given axis, counted from the front.

    A single item on the last axis of a tensor of rank 3 or more is written with an ellipsis.
    """
    last = max(items)
    if len(items) == 1 and rank is not None and rank > 2 and last == rank - 1:
        parts: list[ast.expr] = [ast.Constant(...), literal(items[last])]
    else:
        parts = [literal(items[i]) if i in items else FULL for i in range(last + 1)]
    inner = parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())
    return ast.Subscript(literal(x), inner, ast.Load())


def piece(start: Dim | ast.expr | None, end: Dim | ast.expr | None, step: int = 1) -> ast.Slice:
    """Return `start:end:step`; None is left out."""
    return ast.Slice(
        None if start is None else literal(start),
        None if end is None else literal(end),
        None if step == 1 else literal(step),
    )


def shown_axis(axis: int, rank: int | None) -> int:
    """Return the axis as a person writes it: -1 for the last of three or more."""
    return -1 if rank is not None and rank > 2 and axis == rank - 1 else axis


MAX_DEPTH = 32


def never_negative(value: ir.Value | None, trust_inputs: bool = False, depth: int = MAX_DEPTH) -> bool:
    """Return True if that is proven. `trust_inputs`: the graph's inputs are taken for ids, which are not negative."""
    if value is None or depth == 0:
        return False
    if (by_elements := _elements_nonnegative(value)) is not None:
        return by_elements
    node = value.producer()
    if node is None:
        return trust_inputs and value.is_graph_input()
    if node.domain not in ("", "ai.onnx"):
        return False
    is_first = value is node.outputs[0]
    if _starts_at_zero(node, is_first):
        return True
    signs = SIGNS.get(node.op_type, known(node).data if _keeps_signs(node, is_first) else ())
    inputs = [v for i, v in enumerate(node.inputs) if i in signs and v is not None]
    return bool(inputs) and all(never_negative(i, trust_inputs, depth - 1) for i in inputs)


SIGNS: dict[str, Collection[int]] = {"Clip": (1,), "Range": (0, 2)}  # the inputs that decide the sign of the result


def _starts_at_zero(node: ir.Node, is_first: bool) -> bool:
    """Return True if a lower bound of an operator's result is known, and is 0 or more."""
    least = known(node).least if is_first else 0.0 if node.op_type == "TopK" else None
    return least is not None and least >= 0


def _keeps_signs(node: ir.Node, is_first: bool) -> bool:
    return is_a(node, MOVES) or (is_first and is_a(node, KEEPS_SIGN))


def _elements_nonnegative(value: ir.Value) -> bool | None:
    """Return whether all elements are known to be 0 or more; None if they are not known."""
    data: NDArray[Any] | None = info(value).data
    if data is not None and data.dtype == object:
        return all(nonnegative(d) for d in data.flat)
    if data is not None:
        return data.dtype.kind in "biuf" and bool((data >= 0).all())
    tensor = stored(value)
    return None if tensor is None else tensor.dtype.is_integer() and bool((tensor.numpy() >= 0).all())


FAR = 2**31 - 1  # exporters write "to the end" as INT32_MAX, INT64_MAX or their negatives
FARTHEST = (2**31 - 1, 2**63 - 1)  # "to the end" for negative steps in onnxruntime; the standard says INT_MIN
MAX_WRITTEN_INDICES = 8  # a longer list of indices is a buffer
_IDS = re.compile(r"(token_type|position|segment)_ids?")  # inputs beside those of the vocabulary

# ------------------------------------------------------------------------------------------------------- Gather


@op("Gather", traits=[STRIDES], matrix="data", **rules("gather"))
def gather(b: Builder, data: Arg, indices: Arg, *, axis: int = 0) -> ast.expr | Sized:
    """`nn.Embedding` for a trained table, else indexing."""
    if axis < 0 or data.rank is not None:
        axis %= data.known_rank
    shape = b.sized(data.value)
    if shape is not None and shape.whole is not None and isinstance(indices.number, ast.Constant | ast.UnaryOp):
        return Sized(each(lambda i: b("s[i]", s=shape.whole, i=int(i)), np.asarray(indices.constant)))
    if (embedding := _embedding(b, data, indices, axis)) is not None:
        return embedding
    return subscript(data, {axis: _index(data, indices, axis)}, data.rank)


def _embedding(b: Builder, data: Arg, indices: Arg, axis: int) -> ast.expr | None:
    """Return the call of an `nn.Embedding`, if the data is a trained table of rows that is looked up by ids.

    `nn.Embedding` refuses negative ids, which ONNX allows. So the ids must be inputs of the network (token ids) or
    provably not negative, or the table's name must be that of a module's weight.
    """
    table = layer(b, data, "Embedding")
    source = table.weight
    if source is None or not data.is_float or axis != 0 or len(source.shape) != 2 or indices.rank == 0:
        return None
    path = param_path(source.names[0]) if len(source.names) == 1 else None
    named = path is not None and path[-1] == "weight"
    if not named and (data.constant is not None or not never_negative(indices.value, trust_inputs=True)):
        return None
    # a row of zeros does not tell of padding: a table may have one that is trained
    row = padding_row(b.node) if (noted := PADDING.get(b.node)) is None else noted
    padding = row if row is not None and row < source.shape[0] else OMIT
    build = table.build(b, *source.shape, padding_idx=padding, dtype=unless(source.dtype, ir.DataType.FLOAT))
    module = b.module(_kind_of(indices), build, **table.keys)
    return None if module is None else b("m(i)", m=module, i=indices)


def _kind_of(indices: Arg) -> str:
    """Return a name for a table by what is looked up in it: an input such as `token_type_ids`, or positions."""
    value = indices.value
    for _ in range(8):
        node = None if value is None else value.producer()
        if value is None or value.is_graph_input():
            match = _IDS.fullmatch("" if value is None else value.name or "")
            return f"{match[1]}_embedding" if match else "embedding"
        if _counts(info(value).constant) or (node is not None and node.op_type == "Range"):
            return "position_embedding"
        value = node.inputs[0] if node is not None and (is_a(node, MOVES) or node.op_type == "Cast") else None
    return "embedding"


def _counts(array: NDArray[Any] | None) -> bool:
    """True for 0, 1, 2, ... or another row of consecutive numbers."""
    return array is not None and array.size > 1 and bool((np.diff(array.reshape(-1)) == 1).all())


def _index(data: Arg, indices: Arg, axis: int) -> Any:
    """Return what to write between the brackets: a number, a slice, a short list, or a tensor."""
    ints = indices.ints
    if ints is None or indices.rank is None or indices.rank > 1:
        return indices
    if indices.rank == 0:
        return ints[0]
    run = _run(ints, _size(data, axis))
    if run is not None:
        return run
    is_short = 0 < len(ints) <= MAX_WRITTEN_INDICES
    return list(ints) if is_short or not all(isinstance(i, int) for i in ints) else indices


def _size(data: Arg, axis: int) -> Dim | None:
    return None if data.shape is None else data.shape[axis]


def _run(ints: list[Dim], size: Dim | None) -> ast.Slice | None:
    """Return the slice with the same elements, if there is certainly one."""
    if ints == [0]:
        return piece(None, 1)
    if ints == [-1]:
        return piece(-1, None)
    numbers = [i for i in ints if isinstance(i, int)]
    if not isinstance(size, int) or len(numbers) < len(ints) or not ints:
        return None
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    start, end = numbers[0], numbers[-1] + 1
    if step < 1 or start < 0 or end > size or numbers != list(range(start, end, step)):
        return None
    return piece(start or None, None if end == size else end, step)


@op("GatherElements", traits=[MOVES], **rules("gather_elements"))
def gather_elements(b: Builder, data: Arg, indices: Arg, *, axis: int = 0) -> ast.expr:
    """`x.gather`, which takes no negative indices."""
    index = _from_front(b, data.expr, indices, axis)
    return moved(b, data, data.dtype, lambda x: b("x.gather(axis, i)", x=x, axis=axis, i=index))


def _from_front(b: Builder, x: ast.expr, indices: Arg, axis: int) -> Any:
    """Return the indices as non-negative int64."""
    if not never_negative(indices.value):
        return b("nonnegative_index(i, x.shape[axis])", i=indices, x=x, axis=axis)
    return indices if indices.dtype == ir.DataType.INT64 else b("i.long()", i=indices)


@op("GatherND", traits=[MOVES], **rules("gather_nd"))
def gather_nd(b: Builder, data: Arg, indices: Arg, *, batch_dims: int = 0) -> ast.expr:
    if batch_dims:
        return b("gather_batched(x, i, n)", x=data, i=indices, n=batch_dims)
    return b("x[i.unbind(-1)]", x=data, i=indices)


@op("Positions", domain=DOMAIN, traits=[SELECTS], reference=own.Positions)
def positions(b: Builder, X: Arg) -> ast.expr:
    """The positions of non-zero elements, in row-major order: one row per element."""
    text = "x.nonzero()" if X.rank else "torch.atleast_1d(x).nonzero()"  # torch finds no axis in a scalar
    return computed(b, X.dtype, lambda x: b(text, x=x), X, back=False)


@op("Chosen", domain=DOMAIN, traits=[MOVES, SELECTS], reference=own.Chosen)
def chosen(b: Builder, data: Arg, mask: Arg) -> ast.expr:
    return b("x[mask]", x=data, mask=mask)


# ------------------------------------------------------------------------------------------------------ Scatter

REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}


@op("ScatterElements", "Scatter", traits=[MOVES], data="data updates", **rules("scatter_elements", infer=same))
def scatter_elements(
    b: Builder, data: Arg, indices: Arg, updates: Arg, *, axis: int = 0, reduction: str = "none"
) -> ast.expr:
    index = _from_front(b, data.expr, indices, axis)
    methods = {"none": "x.scatter(axis, i, u)", "add": "x.scatter_add(axis, i, u)"}
    method = methods.get(reduction, "x.scatter_reduce(axis, i, u, how)")
    return _scatter(b, method, data, index, updates, reduction, axis)


@op("ScatterND", traits=[MOVES], data="data updates", **rules("scatter_nd", infer=same))
def scatter_nd(b: Builder, data: Arg, indices: Arg, updates: Arg, *, reduction: str = "none") -> ast.expr:
    methods = {"none": "x.index_put(i.unbind(-1), u)", "add": "x.index_put(i.unbind(-1), u, accumulate=True)"}
    method = methods.get(reduction, "scatter_nd_reduce(x, i, u, how)")
    return _scatter(b, method, data, indices, updates, reduction, 0)


def _scatter(b: Builder, template: str, data: Arg, index: Any, updates: Arg, reduction: str, axis: int) -> ast.expr:
    how = REDUCTIONS.get(reduction, reduction)
    if reduction not in ("none", "add", *REDUCTIONS):
        raise b.error(f"attribute 'reduction' must be none, add, mul, max or min, not {reduction!r}", CHECK)
    if data.dtype not in BITS:
        return b(template, x=data, i=index, u=updates, how=how, axis=axis)
    there, back = "x.long()", "x.to(d)"  # torch has kernels for signed types; the order counts for "max" and "min"
    if reduction not in ("max", "min"):
        there, back = "x.view(s)", "x.view(d)"
    elif data.dtype == ir.DataType.UINT64:
        there, back = "ordered(x)", "unordered(x)"
    x, u = (b(there, x=v, s=BITS[data.dtype]) for v in (data, updates))
    return b(back, x=b(template, x=x, i=index, u=u, how=how, axis=axis), d=data.dtype)


@op("TensorScatter", traits=[MOVES], data="past_cache update", infer=same)
def tensor_scatter(
    b: Builder, past_cache: Arg, update: Arg, write_indices: Arg | None = None, *, axis: int = -2, mode: str = "linear"
) -> ast.expr:
    """Write new entries into a key-value cache; without `write_indices` they are the first."""
    starts = b("x.new_zeros(x.shape[:1], dtype=torch.long)", x=past_cache) if write_indices is None else write_indices
    return b.call(
        "write_cache", past_cache, update, starts,
        axis=unless(axis, -2), circular=unless(mode == "circular", False),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- Slice


@op("Slice", traits=[STRIDES, PASSES_ON], **rules("slices"))
def slice_(
    b: Builder, data: Arg, starts: Arg, ends: Arg, axes: Arg | None = None, steps: Arg | None = None
) -> ast.expr:
    """`x[:, 1:-1]`. A negative step becomes a flip: position p of the flipped axis is position ~p of the axis."""
    first, last = starts.ints, ends.ints
    count = len(first or ())
    positions, strides = _ints(axes, range(count)), _ints(steps, [1] * count)
    if first is None or last is None or positions is None or strides is None:
        return _slice_at_run_time(b, data, starts, ends, axes, steps)
    if min(positions, default=0) < 0:
        positions = [a % data.known_rank for a in positions]
    backward = tuple(a for a, s in zip(positions, strides) if s < 0)
    items: dict[int, ast.Slice] = {}
    for axis, start, end, step in zip(positions, first, last, strides):
        span = _span(b, start, end, step, _size(data, axis))
        if any((span.lower, span.upper, span.step)):
            items[axis] = span
    x = data.expr
    if backward:
        x = flipped(b, data, data.dtype, backward if len(backward) > 1 else backward[0])
    return subscript(x, items, data.rank) if items else x


def _flipped(b: Builder, start: Dim, size: Dim | None) -> Dim:
    """Return where a backward slice starts on the flipped axis; a start before the first element is clamped to it."""
    if start in (-1, 0) or (isinstance(start, int) and start > 0):
        return -1 - start
    if size is None:
        raise b.error("a negative step needs the size of the axis, which is unknown", FIX_SHAPE)
    if isinstance(start, int) and start <= -FAR:
        return size - 1
    return dim_min(-1 - start, size - 1)


def _ints(x: Arg | None, default: Sequence[int]) -> list[int] | None:
    """Return the elements of an optional input; None if one of them is no known number."""
    if x is None:
        return list(default)
    numbers = [i for i in x.ints or () if isinstance(i, int)]
    return numbers if x.ints is not None and len(numbers) == len(x.ints) else None


def _span(b: Builder, start: Dim, end: Dim, step: int, size: Dim | None) -> ast.Slice:
    """Return a slice without the bounds that are the axis's own; for a negative step, that of the flipped axis."""
    if step < 0:
        start, end, step = _flipped(b, start, size), FAR if end in FARTHEST else -1 - end, -step
    from_front = isinstance(start, int) and (start == 0 or start <= -FAR or (isinstance(size, int) and start <= -size))
    to_end = (isinstance(end, int) and (end >= FAR or (isinstance(size, int) and end >= size))) or end == size
    if isinstance(end, int) and end <= -FAR:
        end = 0  # the slice is empty; torch warns of very low numbers
    return piece(None if from_front else start, None if to_end else end, step)


def _slice_at_run_time(b: Builder, data: Arg, starts: Arg, ends: Arg, axes: Arg | None, steps: Arg | None) -> ast.expr:
    axis, step = _ints(axes, [0]), _ints(steps, [1])
    if starts.shape == (1,) and axis and step and step[0] == 1:
        return subscript(data, {axis[0] % data.known_rank: piece(starts.as_int(), ends.as_int())}, data.rank)
    first = b.let(starts.as_ints(), "starts")
    chosen = b("range(len(s))", s=first) if axes is None else axes.as_ints()
    strides = b("[1] * len(s)", s=first) if steps is None else steps.as_ints()
    return b("slice_axes(x, s, e, a, t)", x=data, s=first, e=ends.as_ints(), a=chosen, t=strides)


# ------------------------------------------------------------------------------------------------------- others


@op("Compress", traits=[MOVES, SELECTS])
def compress(b: Builder, input: Arg, condition: Arg, *, axis: int | None = None) -> ast.expr:
    """Keep the slices along an axis (or the flattened elements) where the condition, which may be shorter, is true."""
    if axis is None:
        return b("x.flatten()[c.nonzero().squeeze(1)]", x=input, c=condition)
    axis %= input.known_rank
    fits = condition.shape is not None and input.shape is not None and condition.shape[0] == input.shape[axis]
    chosen = condition if fits else b("c.nonzero().squeeze(1)", c=condition)
    return subscript(input, {axis: chosen}, input.rank)


@op("ReverseSequence", traits=[MOVES], **rules("reverse_sequence", infer=same))
def reverse_sequence(
    b: Builder, input: Arg, sequence_lens: Arg, *, batch_axis: int = 1, time_axis: int = 0
) -> ast.expr:
    return b.call(
        "reverse_sequence", input, sequence_lens, time_axis=unless(time_axis, 0), batch_axis=unless(batch_axis, 1)
    )
