"""Operators that only move elements: reshape, transpose, squeeze, expand, flatten, concat, split."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from onnxgen.code.quote import OMIT, Ref, unless
from onnxgen.graph.annotations import KEPT
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import ELEMENTWISE, JOINS, MOVES, PASSES_ON, RESHAPE, SAME, STRIDES, TEXTS, VIEW
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.generate import fill
from onnxgen.ops.index import subscript
from onnxgen.ops.math import unary
from onnxgen.ops.rules import rules
from onnxgen.shapes import own
from onnxgen.shapes.dims import Dim, Sym, is_symbol, product, symbols
from onnxgen.shapes.infer_layout import equal_parts


@op("Identity", traits=[TEXTS, VIEW, ELEMENTWISE, SAME], **rules("unchanged", numbers=lambda x: x, dims=lambda d: d))
def identity(b: Builder, input: Arg) -> ast.expr:
    """Written as nothing. But a trained tensor that gets another name here becomes a parameter of that name."""
    output = b.node.outputs[0]
    if input.is_trainable and not output.is_graph_output():
        return b.parameter(input, output.name or "")
    return input.expr


@op("Flatten", traits=[RESHAPE], **rules("flatten"))
def flatten(b: Builder, input: Arg, *, axis: int = 1) -> ast.expr:
    """To rank 2: the axes before `axis`, and the others."""
    rank = input.known_rank
    axis = axis % rank if rank and axis < 0 else axis
    if axis == 1 and rank >= 2:
        return input.expr if rank == 2 else b("x.flatten(1)", x=input)
    if axis == 0 or rank == 0:
        return b("x.reshape(1, -1)", x=input)
    if axis == rank:
        return b("x.reshape(-1, 1)", x=input)
    return b("x.flatten(axis).flatten(0, last)", x=input, axis=axis, last=axis - 1)


@op("Reshape", traits=[RESHAPE], **rules("reshape"))
def reshape(b: Builder, data: Arg, shape: Arg, *, allowzero: int = 0) -> ast.expr:
    wanted = shape.ints
    if wanted is None:
        return b("x.reshape(s)" if allowzero else "reshape_keeping(x, s)", x=data, s=shape.as_ints())
    sizes: list[Any] = []
    for i, dim in enumerate(wanted):
        if dim == 0 and not allowzero:
            if data.shape is None:
                sizes.append(b("x.shape[i]", x=data, i=i))
                continue
            dim = data.shape[i]
        sizes.append(dim)
    return _reshaped(b, data, sizes)


def _reshaped(b: Builder, data: Arg, sizes: list[Any]) -> ast.expr:
    """Write the shortest form: nothing, `flatten`, `unsqueeze`, `unflatten`, or `reshape` with at most one -1."""
    out, shape = b.out().shape, data.shape
    if shape is not None and out is not None and all(not isinstance(s, ast.expr) for s in sizes):
        form = data.expr if out == shape else None
        if len(out) < len(shape):
            form = _flattened(b, data, shape, out)
        elif len(out) > len(shape):
            form = _widened(b, data, shape, out) or _unflattened(b, data, shape, out)
        form = form or _by_rows(b, data, shape, out, sizes)
        if form is not None:
            return form
        sizes = _one_free(list(out), sizes)
    return b.call(b("x.reshape", x=data), *(sizes or [()]))


def _flattened(b: Builder, data: Arg, shape: tuple[Dim, ...], out: tuple[Dim, ...]) -> ast.expr | None:
    """Return `x.flatten(start, end)` if consecutive axes become one and the others stay."""
    gone = len(shape) - len(out)
    for start in range(len(out)):
        end = start + gone
        others = (*shape[:start], product(shape[start : end + 1]), *shape[end + 1 :])
        if out == others:
            last = unless(end, len(shape) - 1)
            first = OMIT if start == 0 and last is OMIT else start
            return b.call(b("x.flatten", x=data), first, last)
    return None


def _widened(b: Builder, data: Arg, shape: tuple[Dim, ...], out: tuple[Dim, ...]) -> ast.expr | None:
    """Return x with further axes of size 1, if that is the result."""
    added: list[int] = []
    for axis, dim in enumerate(out):
        rest = shape[axis - len(added) :]
        if rest and dim == rest[0]:
            continue
        if dim != 1:
            return None
        added.append(axis)
    return with_axes(b, data, added, len(out)) if len(out) - len(added) == len(shape) else None


def with_axes(b: Builder, data: Arg, axes: list[int], rank: int) -> ast.expr:
    """Return `x.unsqueeze(1)`, or `x[:, None, None]` for several axes, which are counted in the result."""
    if len(axes) == 1:
        return b("x.unsqueeze(i)", x=data, i=-1 if axes[0] == rank - 1 else axes[0])
    if axes == list(range(rank - len(axes), rank)) and rank > len(axes):
        return ast.Subscript(
            data.expr, ast.Tuple([ast.Constant(a) for a in (..., *[None] * len(axes))], ast.Load()), ast.Load()
        )
    return subscript(data, dict.fromkeys(axes))


def _unflattened(b: Builder, data: Arg, shape: tuple[Dim, ...], out: tuple[Dim, ...]) -> ast.expr | None:
    """Return `x.unflatten(axis, sizes)` if one axis becomes several, all but one of known size, and the others stay."""
    more = len(out) - len(shape)
    for axis in range(len(shape)):
        parts = out[axis : axis + more + 1]
        if out[:axis] == shape[:axis] and out[axis + more + 1 :] == shape[axis + 1 :] and product(parts) == shape[axis]:
            known = [d for d in parts if isinstance(d, int)]
            sizes = _parts(parts, known)
            if sizes is not None and len(known) == len(parts) and axis == 1 and len(shape) == 2 and not _moves_rows(b):
                return b.call(b("x.reshape", x=data), -1, *parts)
            i = -1 if axis == len(shape) - 1 else axis
            return None if sizes is None else b("x.unflatten(i, s)", x=data, i=i, s=sizes)
    return None


def _parts(parts: tuple[Dim, ...], known: list[int]) -> tuple[Dim, ...] | None:
    """Return the sizes that an axis is divided into, with -1 for one that follows; None if others are not known."""
    symbolic = [d for d in parts if isinstance(d, Sym)]
    if 0 in known or len(symbolic) > 2:
        return None
    if len(symbolic) == 2:
        computed = _computed(symbolic)
        return None if computed is None else tuple(-1 if d is computed else d for d in parts)
    if not symbolic and known[-1] > known[-2]:
        return (*parts[:-1], -1)  # heads, groups: their number is chosen, and their size follows
    return tuple(-1 if isinstance(d, Sym) else d for d in parts)


def _computed(dims: Sequence[Sym]) -> Sym | None:
    """Return that of two sizes which is computed of an input's sizes, if the other one is the batch."""
    for batch, other in (dims, reversed(dims)):
        source = next(iter(symbols(batch).values())).source if is_symbol(batch) else None
        if source is not None and source[1] == 0 and not is_symbol(other):
            return other
    return None


def _moves_rows(b: Builder) -> bool:
    """True if a result is only used with its first axis elsewhere, as where heads of attention come first."""
    users = [usage.node for usage in b.node.outputs[0].uses()]
    return any(user.op_type == "Transpose" and user.attributes.get_ints("perm", (1,))[:1] != (0,) for user in users)


def _by_rows(b: Builder, data: Arg, shape: tuple[Dim, ...], out: tuple[Dim, ...], sizes: list[Any]) -> ast.expr | None:
    """Return a form that reshapes each row of the first axis alone, if that axis stays: it may then have any size."""
    known = [d for d in (*shape, *out) if isinstance(d, int)]
    if len(known) < len(shape) + len(out) or 0 in known or not (shape and out) or shape[0] != out[0]:
        return None
    if not isinstance(data.expr, Ref):
        return None
    if len(shape) > 2 and shape[1] == 1 and out[1:] == (product(shape[2:]), 1):
        return b("x.flatten(2).transpose(1, 2)", x=data)  # as of several channels
    if -1 in sizes[1:] and len(out) > 2:
        return b.call(b("x.reshape", x=data), b("x.shape[0]", x=data), *sizes[1:])
    return b.call(b("x.reshape", x=data), -1, *out[1:])


def _one_free(out: list[Dim], sizes: list[Any]) -> list[Any]:
    """Write -1 for a single size that is not a number, so that it need not be computed at run time."""
    symbolic = [i for i, d in enumerate(out) if not isinstance(d, int)]
    if len(symbolic) == 1 and 0 not in out:
        return [-1 if i in symbolic else d for i, d in enumerate(out)]
    return sizes if -1 in sizes else out


@op("Transpose", traits=[VIEW, STRIDES], **rules("transpose"))
def transpose(b: Builder, data: Arg, *, perm: list[int] | None = None) -> ast.expr:
    if perm is None and data.rank is None:
        return b("x.permute(*reversed(range(x.dim())))", x=data)
    rank = data.known_rank if perm is None else len(perm)
    order = perm if perm is not None else list(reversed(range(rank)))
    moved = [i for i, p in enumerate(order) if p != i]
    if not moved:
        return data.expr
    if len(moved) == 2:
        first, second = moved
        if rank == 2:
            return b("x.T", x=data)
        if rank > 3 and second == rank - 1 and first == rank - 2:
            return b("x.transpose(-2, -1)", x=data)
        return b("x.transpose(i, j)", x=data, i=first, j=second)
    return b.call(b("x.permute", x=data), *order)


@op("Unsqueeze", traits=[RESHAPE], **rules("unsqueeze"))
def unsqueeze(b: Builder, data: Arg, axes: Arg) -> ast.expr:
    if axes.constant is None or data.rank is None:
        return b("unsqueeze_at(x, axes)", x=data, axes=axes.as_ints())
    known = axes.known_ints("axes")
    rank = data.known_rank + len(known)
    return with_axes(b, data, sorted(a % rank for a in known), rank) if known else data.expr


@op("Squeeze", traits=[RESHAPE], **rules("squeeze"))
def squeeze(b: Builder, data: Arg, axes: Arg | None = None) -> ast.expr:
    if axes is None:
        if data.shape is not None and all(isinstance(d, int) for d in data.shape):
            ones = [i for i, d in enumerate(data.shape) if d == 1]
            return b("x.squeeze(i)", x=data, i=tuple(ones) if len(ones) != 1 else ones[0]) if ones else data.expr
        return b("x.squeeze()", x=data)
    if axes.constant is None:
        return b("x.squeeze(tuple(axes))", x=data, axes=axes.as_ints())
    known = axes.known_ints("axes")
    if not known:
        return data.expr
    return b("x.squeeze(i)", x=data, i=known[0] if len(known) == 1 else tuple(known))


@op("Concat", since=1, traits=[JOINS, PASSES_ON], data="inputs", **rules("concat"))
def concat(b: Builder, *inputs: Arg, axis: int = 1) -> ast.expr:
    if len(inputs) == 1:
        return inputs[0].expr
    return b.call("torch.cat", [a.expr for a in inputs], dim=unless(axis, 0))


@op("Split", traits=[STRIDES, PASSES_ON], **rules("split"))
def split(b: Builder, input: Arg, split: Arg | None = None, *, axis: int = 0, num_outputs: int | None = None) -> Any:
    """Into the given sizes, or into equal parts of which the last may be smaller (opset 18).

    `chunk` is used only if the axis is known to be a multiple of the parts, since it makes no empty parts.
    """
    count = len(b.node.outputs)
    size = None if input.shape is None else input.shape[axis]
    dim = unless(_from_end(input, axis), 0)
    if split is None:
        return _equal_split(b, input, size, count, dim)
    sizes = split.ints
    if count == 1 and sizes == [size]:
        return input.expr
    part = sizes[0] if sizes and len(set(sizes)) == 1 else 0  # the size of all parts
    if isinstance(size, int) and part != 0 and part * count == size:
        return b.unpack(b.call(b("x.chunk", x=input), count, dim=dim))
    parts: Any = split.as_ints() if sizes is None else sizes
    return b.unpack(b.call(b("x.split", x=input), parts if part == 0 else part, dim=dim))


def _equal_split(b: Builder, x: Arg, size: Dim | None, count: int, dim: Any) -> Any:
    """Divide an axis into equal parts. From opset 18 on, the last one may be smaller."""
    if count == 1:
        return x.expr
    if b.opset < 18 or (isinstance(size, int) and size % count == 0):
        return b.unpack(b.call(b("x.chunk", x=x), count, dim=dim))
    if not isinstance(size, int):
        return b.unpack(b.call("equal_parts", x, count, dim=dim))
    return b.unpack(b.call(b("x.split", x=x), equal_parts(size, count), dim=dim))


def _from_end(x: Arg, axis: int) -> int:
    """Return -1 for the last of two or more axes."""
    return -1 if x.rank is not None and x.rank > 1 and axis % x.rank == x.rank - 1 else axis


@op("Unbind", domain=DOMAIN, traits=[STRIDES], reference=own.Unbind)
def unbind(b: Builder, x: Arg, *, axis: int = 0) -> Any:
    """Every slice along an axis, which has as many as the node has outputs."""
    return b.unpack(b("x.unbind(axis)", x=x, axis=_from_end(x, axis)))


@op("Expand", traits=[STRIDES, PASSES_ON], **rules("expand"))
def expand(b: Builder, input: Arg, shape: Arg) -> ast.expr:
    """Broadcasts in both directions: an axis of the input may also be larger than the given size.

    One number of the file is written as a tensor of that number, `torch.zeros(n, 64)`.
    """
    out, asked = b.out().shape, shape.ints
    if input.scalar is not None and input.dtype is not None and _gives_the_shape(shape, input):
        return fill(b, shape.as_ints(), input.scalar, input.dtype)
    if asked is None or out is None or input.shape is None or not _is_either(out, input.shape, asked):
        return b("x.expand(torch.broadcast_shapes(x.shape, s))", x=input, s=shape.as_ints())
    if out == input.shape:
        return input.expr
    kept = [-1 if i >= len(out) - len(input.shape) and input.shape[i - len(out)] == d else d for i, d in enumerate(out)]
    return b.call(b("x.expand", x=input), *kept)


def _gives_the_shape(shape: Arg, number: Arg) -> bool:
    """Return True if the result has this shape, whatever it is, and the number is no buffer of the file."""
    count = shape.shape[0] if shape.shape else 0
    is_free = number.value is not None and not KEPT.get(number.value)
    return is_free and isinstance(count, int) and count >= number.known_rank


def _is_either(out: Sequence[Dim], *operands: Sequence[Dim]) -> bool:
    """Return True if each size of a broadcast is a number or a size of one of its operands."""
    return all(
        isinstance(d, int) or any(len(o) >= i and o[-i] == d for o in operands) for i, d in enumerate(reversed(out), 1)
    )


@op("Stack", domain=DOMAIN, traits=[JOINS], data="inputs", reference=own.Stack)
def stack(b: Builder, *inputs: Arg, axis: int = 0) -> ast.expr:
    axis = -1 if axis and axis == inputs[0].rank else axis
    return b.call("torch.stack", [a.expr for a in inputs], dim=unless(axis, 0))


@op("Roll", domain=DOMAIN, traits=[MOVES], reference=own.Roll)
def roll(b: Builder, x: Arg, *, shifts: list[int], axes: list[int]) -> ast.expr:
    if len(axes) == 1:
        return b.call("torch.roll", x, shifts[0], axes[0])
    return b.call("torch.roll", x, tuple(shifts), tuple(axes))


@op("RepeatInterleave", domain=DOMAIN, traits=[MOVES], reference=own.RepeatInterleave)
def repeat_interleave(b: Builder, x: Arg, *, repeats: int, axis: int) -> ast.expr:
    return b("x.repeat_interleave(n, dim=axis)", x=x, n=repeats, axis=axis)


op("RotateHalf", domain=DOMAIN, reference=own.RotateHalf)(unary("rotate_half(x)"))
op("RotatePairs", domain=DOMAIN, reference=own.RotatePairs)(unary("rotate_pairs(x)"))
