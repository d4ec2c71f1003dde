"""What views, parts and constants are in terms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.rules import NotFollowed, Result, axes_of, dtype_name, positive, rule
from onnxgen.canonical.terms import Term, number_in, plain
from onnxgen.canonical.views import Pattern, parts

MOST = 100_000  # elements of a constant that is computed

# ---- views -----------------------------------------------------------------------------------------------------------


@rule(
    "view.default",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "unsqueeze",
    "view_as",
    "reshape_as",
    "_reshape_alias",
)
def reshape(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.reshaped(x, out.shape)


@rule("squeeze")
def squeeze(t: Algebra, out: Result, x: Term, axes: Any = None) -> Any:
    chosen = [x.shape[a] for a in axes_of(axes, len(x.shape))]
    unknown = [size for size in chosen if not isinstance(size, int)]
    if len(out.shape) == len(x.shape) - chosen.count(1) and (t.thorough or not unknown):
        t.asked |= {*unknown}  # they are kept, and no 1
    elif len(out.shape) > len(x.shape) - chosen.count(1) - len(unknown):  # else each is 1: that is a guard
        raise NotFollowed("squeeze of axes that may have any size: name the axis")
    return t.reshaped(x, out.shape)


@rule("permute")
def permute(t: Algebra, out: Result, x: Term, axes: Any) -> Any:
    return t.permuted(x, [positive(a, len(x.shape)) for a in axes])


@rule("transpose.int", "swapaxes", "swapdims")
def transpose(t: Algebra, out: Result, x: Term, one: int, other: int) -> Any:
    axes = list(range(len(x.shape)))
    i, j = positive(one, len(axes)), positive(other, len(axes))
    axes[i], axes[j] = axes[j], axes[i]
    return t.permuted(x, axes)


@rule("t", "numpy_T", "matrix_H", "mT", "mH", "adjoint")
def turned(t: Algebra, out: Result, x: Term) -> Any:
    if "complex" in x.dtype:
        return None
    return x if len(x.shape) < 2 else transpose(t, out, x, -1, -2) if len(x.shape) == 2 else None


rule("mT")(lambda t, out, x: transpose(t, out, x, -1, -2))


@rule("movedim", "moveaxis")
def movedim(t: Algebra, out: Result, x: Term, source: Any, target: Any) -> Any:
    rank = len(x.shape)
    sources, targets = axes_of(source, rank), axes_of(target, rank)
    axes: list[Any] = [None] * rank
    for s, d in zip(sources, targets, strict=True):
        axes[d] = s
    rest = iter(a for a in range(rank) if a not in sources)
    return t.permuted(x, [next(rest) if a is None else a for a in axes])


@rule("expand", "expand_as", "broadcast_to")
def expand(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.expanded(x, out.shape)


@rule("repeat_interleave.self_int")
def repeat_interleave(t: Algebra, out: Result, x: Term, count: Any, axis: Any = None, size: Any = None) -> Any:
    if axis is None or not isinstance(count, int):
        return None
    axis = positive(axis, len(x.shape))
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    return t.reshaped(t.expanded(t.reshaped(x, (*before, 1, *after)), (*before, count, *after)), out.shape)


@rule("repeat")
def repeat(t: Algebra, out: Result, x: Term, counts: Sequence[Any]) -> Any:
    sizes = (1,) * (len(counts) - len(x.shape)) + x.shape
    if any(size != 1 and count != 1 for size, count in zip(sizes, counts, strict=True)):
        return None
    return t.expanded(x, out.shape)


@rule("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh", "resolve_conj", "resolve_neg")
def same(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return x


@rule("to", "_to_copy", "type_as")
def to(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    return t.cast(x, out.dtype)


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(t: Algebra, out: Result, x: Term, p: float, train: bool) -> Any:
    return x if not train or p == 0 else None


@rule("detach")
def detach(t: Algebra, out: Result, x: Term) -> Any:
    return t.term("detach", (x,), out.shape, out.dtype)


@rule("slice.Tensor")
def slice_(t: Algebra, out: Result, x: Term, axis: int = 0, start: Any = None, stop: Any = None, step: Any = 1) -> Any:
    axis = positive(axis, len(x.shape))
    size = x.shape[axis]
    start, stop = (0 if start is None else start), (size if stop is None else stop)
    if isinstance(stop, int) and stop >= 2**62:
        stop = size
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int):
        start, stop = (max(0, min(v + size if v < 0 else v, size)) for v in (start, stop))
        return t.sliced(x, axis, start, max(start, stop), step)
    if start == 0 and stop == size:
        return t.sliced(x, axis, 0, size, step)
    if step == 1 and t.thorough and _is_natural(start):  # the result's size says where it ends
        return t.sliced(x, axis, start, plain(start + out.shape[axis]))
    return None


def _is_natural(size: Any) -> bool:
    return size >= 0 if isinstance(size, int) else bool(getattr(size, "is_nonnegative", False))


@rule("narrow")
def narrow(t: Algebra, out: Result, x: Term, axis: int, start: Any, length: Any) -> Any:
    if not isinstance(start, int) or start < 0:
        return None
    return slice_(t, out, x, axis, start, plain(start + length))


@rule("select.int")
def select(t: Algebra, out: Result, x: Term, axis: int, index: Any) -> Any:
    axis = positive(axis, len(x.shape))
    size = x.shape[axis]
    if not isinstance(index, int) or (index < 0 and not isinstance(size, int)):
        return None
    index = index + size if index < 0 else index
    part = t.sliced(x, axis, index, index + 1)
    return t.reshaped(part, (*part.shape[:axis], *part.shape[axis + 1 :]))


def _cut(t: Algebra, x: Term, axis: int, counts: Sequence[Any]) -> tuple[Term, ...]:
    axis, at, parts = positive(axis, len(x.shape)), 0, []
    for count in counts:
        parts.append(t.sliced(x, axis, at, at + count))
        at += count
    return tuple(parts)


@rule("split.Tensor")
def split(t: Algebra, out: Result, x: Term, count: Any, axis: int = 0) -> Any:
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    return _cut(t, x, axis, [min(count, size - i) for i in range(0, size, count)])


@rule("split_with_sizes", "split.sizes")
def split_sizes(t: Algebra, out: Result, x: Term, counts: Any, axis: int = 0) -> Any:
    return _cut(t, x, axis, counts) if all(isinstance(c, int) for c in counts) else None


@rule("chunk")
def chunk(t: Algebra, out: Result, x: Term, count: int, axis: int = 0) -> Any:
    size = x.shape[axis]
    return split(t, out, x, -(-size // count), axis) if isinstance(size, int) else None


@rule("tensor_split.sections")
def tensor_split(t: Algebra, out: Result, x: Term, count: Any, axis: int = 0) -> Any:
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    return _cut(t, x, axis, [size // count + (i < size % count) for i in range(count)])


@rule("unbind.int")
def unbind(t: Algebra, out: Result, x: Term, axis: int = 0) -> Any:
    size = x.shape[axis]
    return tuple(select(t, out, x, axis, i) for i in range(size)) if isinstance(size, int) else None


@rule("cat", "concat", "concatenate")
def cat(t: Algebra, out: Result, pieces: Sequence[Term], axis: int = 0) -> Any:
    axis = positive(axis, len(out.shape))
    if any(p.shape == (0,) for p in pieces):
        return None
    return t.joined([t.cast(p, out.dtype) for p in pieces], axis)


@rule("hstack")
def hstack(t: Algebra, out: Result, pieces: Sequence[Term]) -> Any:
    return cat(t, out, pieces, 1) if all(len(p.shape) > 1 for p in pieces) else None


rule("vstack")(lambda t, out, pieces: cat(t, out, pieces, 0) if all(len(p.shape) > 1 for p in pieces) else None)


@rule("stack")
def stack(t: Algebra, out: Result, pieces: Sequence[Term], axis: int = 0) -> Any:
    axis = positive(axis, len(out.shape))
    wide = [t.cast(p, out.dtype) for p in pieces]
    return t.joined([t.reshaped(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in wide], axis)


@rule("flip")
def flip(t: Algebra, out: Result, x: Term, axes: Any) -> Any:
    turned = {positive(a, len(x.shape)) for a in axes}
    if x.op == "call" and x.args[0] == "flip":
        x, turned = x.args[1], turned ^ {*x.args[2]}
    turned = {a for a in turned if x.shape[a] != 1}
    return t.term("call", ("flip", x, tuple(sorted(turned))), out.shape, out.dtype) if turned else x


# ---- constants -------------------------------------------------------------------------------------------------------


def filled(t: Algebra, out: Result, number: Any) -> Any:
    return t.constant(number, out.shape, out.dtype) if isinstance(number, (bool, int, float)) else None


rule("zeros", "zeros_like", "new_zeros")(lambda t, out, *_: filled(t, out, 0))
rule("ones", "ones_like", "new_ones")(lambda t, out, *_: filled(t, out, 1))
rule("full")(lambda t, out, size, number, *_: filled(t, out, number))
rule("full_like")(lambda t, out, x, number, *_: filled(t, out, number))
rule("new_full")(lambda t, out, x, size, number, *_: filled(t, out, number))
rule("scalar_tensor")(lambda t, out, number, *_: filled(t, out, number))


@rule("embedding")
def embedding(t: Algebra, out: Result, weight: Term, indices: Term, *rest: Any) -> Any:
    if len(rest) > 1 and any(rest[1:]):
        return None
    unlearned = () if not rest or rest[0] in (None, -1) else (("padding", rest[0]),)
    return rows(t, weight, indices, unlearned)


def rows(t: Algebra, weight: Term, indices: Term, unlearned: Any = ()) -> Term:
    """Return the rows of a table at indices. A view of indices is a view of the rows."""
    inside = weight.shape[1:]
    if indices.op == "view":
        base, pattern = indices.args
        count = iter(range(len(pattern.sizes), len(pattern.sizes) + len(inside)))
        added = tuple(tuple(next(count) for _ in parts(size)) for size in inside)
        wide = Pattern((*pattern.atoms, *map(parts, inside)), (*pattern.groups, *added))
        return t.rearranged(rows(t, weight, base, unlearned), wide)
    if indices.shape and (number := number_in(indices)) is not None:  # one row, again and again
        row = rows(t, weight, t.constant(number, (), indices.dtype), unlearned)
        return t.expanded(t.reshaped(row, (1,) * len(indices.shape) + inside), indices.shape + inside)
    given = ("aten::index.Tensor", weight, (indices,), *unlearned)
    return t.term("call", given, (*indices.shape, *inside), weight.dtype)


@rule("index.Tensor")
def index(t: Algebra, out: Result, x: Term, indices: Sequence[Any]) -> Any:
    *before, last = indices
    if any(i is not None for i in before) or not isinstance(last, Term) or last.dtype in ("bool", "uint8"):
        return None
    axis, rank = len(before), len(x.shape)
    taken = rows(t, t.permuted(x, [axis, *(a for a in range(rank) if a != axis)]), last)
    count = len(last.shape)
    return t.permuted(taken, [*range(count, count + axis), *range(count), *range(count + axis, count + rank - 1)])


@rule("tril", "triu")
def triangle(t: Algebra, out: Result, x: Term, diagonal: Any = 0, upper: bool = False) -> Any:
    """Of ones, below the diagonal: where causal attention looks. Above it: where it does not."""
    if number_in(x) != 1 or diagonal != int(upper) or len(x.shape) != 2 or not t.thorough:
        return None
    causal = t.term("call", ("causal",), x.shape, "bool")
    if upper:
        causal = t.each("logical_not", [causal], x.shape, "bool")
    return t.cast(causal, out.dtype)


rule("triu")(lambda t, out, x, diagonal=0: triangle(t, out, x, diagonal, True))


@rule("pixel_shuffle")
def pixel_shuffle(t: Algebra, out: Result, x: Term, factor: Any) -> Any:
    channels = x.shape[-3]
    if not isinstance(channels, int) or not isinstance(factor, int):
        return None
    *before, _, height, width = x.shape
    wide = t.reshaped(x, (*before, channels // factor**2, factor, factor, height, width))
    at = len(before)
    return t.reshaped(t.permuted(wide, [*range(at), at, at + 3, at + 1, at + 4, at + 2]), out.shape)


@rule("pixel_unshuffle")
def pixel_unshuffle(t: Algebra, out: Result, x: Term, factor: Any) -> Any:
    *before, channels, height, width = out.shape
    if not isinstance(channels, int) or not isinstance(factor, int):
        return None
    wide = t.reshaped(x, (*before, channels // factor**2, height, factor, width, factor))
    at = len(before)
    return t.reshaped(t.permuted(wide, [*range(at), at, at + 2, at + 4, at + 1, at + 3]), out.shape)


@rule("arange.default", "arange.start", "arange.start_step")
def arange(t: Algebra, out: Result, *bounds: Any) -> Any:
    """Numbers of a known count are a constant, as an exporter stores them."""
    numbers = [b for b in bounds if isinstance(b, (int, float)) and not isinstance(b, bool)]
    if any(not isinstance(b, (int, float)) for b in bounds if b is not None and not isinstance(b, torch.dtype)):
        given = [b for b in bounds if b is not None and not isinstance(b, torch.dtype)]
        if t.thorough and (len(given) == 1 or (len(given) == 2 and given[0] == 0)):  # as many as a size
            return t.cast(t.term("call", ("counted",), out.shape, "int64"), out.dtype)
        return None
    if not isinstance(out.shape[0], int) or out.shape[0] > MOST:
        return None
    return constant(t, torch.arange(*numbers, dtype=getattr(torch, out.dtype)))


def constant(terms: Algebra, tensor: Tensor) -> Term:
    """Return the term of known elements: of one number, or by their bytes."""
    tensor = tensor.detach().cpu()
    name = dtype_name(tensor.dtype)
    if tensor.numel() and not tensor.is_complex() and bool((tensor == tensor.reshape(-1)[0]).all()):
        return terms.constant(tensor.reshape(-1)[0].item(), tuple(tensor.shape), name)
    if terms.thorough and 1 in tensor.shape:
        return terms.reshaped(constant(terms, tensor.squeeze()), tuple(tensor.shape))
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
    term = terms.term("constant", (hashlib.sha256(data).hexdigest(), finite), tuple(tensor.shape), name)
    terms.elements[term] = tensor
    return term


@rule("size", "sym_size")
def unused(t: Algebra, out: Result, x: Term, *_: Any) -> Any:
    raise NotFollowed("sizes as a tensor")


@rule("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range_for_size")
def nothing(t: Algebra, out: Result, *_: Any) -> Any:
    return ()
