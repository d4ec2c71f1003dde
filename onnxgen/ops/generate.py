"""Operators that create tensors: constants, ranges, random numbers, shapes and positions."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, DeviceOf, literal, shortest, unless
from onnxgen.errors import INFER
from onnxgen.graph.operators import COUNTED, INTEGERS, PIECEWISE_CONSTANT, SETS_SIZE, op
from onnxgen.graph.traits import ELEMENTWISE, EXACT, FILLS, MOVES, RANDOM, SELECTS, SIZES, TEXTS
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.lowering.from_sizes import Sized
from onnxgen.ops.cast import WIDER, computed, converted
from onnxgen.ops.index import positions
from onnxgen.ops.rules import rules
from onnxgen.shapes.dims import nonnegative
from onnxgen.shapes.infer_math import like, same

T = ir.DataType


@op("Constant", traits=[EXACT], flat=COUNTED)
def constant(
    b: Builder,
    *,
    value: Any = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
    sparse_value: Any = None,
) -> ast.expr:
    """Only a sparse Constant gets here: all others are read as stored tensors (`weights.stored.stored`)."""
    raise b.error("a sparse Constant is not handled", "store it as a dense tensor")


@op("ConstantOfShape", traits=[EXACT], **rules("constant_of_shape"), flat=COUNTED)
def constant_of_shape(b: Builder, input: Arg, *, value: Any = None) -> ast.expr:
    dtype = T.FLOAT if value is None else value.dtype
    item = 0.0 if value is None else value.numpy().reshape(-1)[0].item()
    return fill(b, input.as_ints(), item, dtype)


def fill(b: Builder, sizes: Any, item: Any, dtype: ir.DataType) -> ast.expr:
    """Return a tensor of these sizes, of which each element is a number."""
    if item in (0, 1) and dtype not in (T.BOOL, T.STRING) and not (item == 0 and np.signbit(item)):
        name = "torch.zeros" if item == 0 else "torch.ones"
        axes = sizes.elts if isinstance(sizes, ast.Tuple) and sizes.elts else [sizes]
        return b.call(name, *axes, dtype=unless(dtype, T.FLOAT), device=DeviceOf())
    number = shortest(item, dtype) if isinstance(item, float) else item
    kept = OMIT if dtype in (T.FLOAT, T.INT64, T.BOOL) else dtype
    return b.call("torch.full", sizes, number, dtype=kept, device=DeviceOf())


@op("Range", traits=[EXACT], still="start limit delta", **rules("ranged"), flat={"limit": SETS_SIZE})
def range_(b: Builder, start: Arg, limit: Arg, delta: Arg, *, stash_type: int = 1) -> ast.expr:
    """start, start + delta, ... up to limit, exclusive; empty if limit is in the other direction."""
    dtype = start.dtype
    if dtype is None:
        raise b.error("the type of the inputs is unknown", INFER)
    counted, (first, last, step) = zip(*(_of_range(x, limit.is_sized) for x in (start, limit, delta)))
    bounds: list[Any] = [x.as_int() if n is None else n for x, n in zip((start, limit, delta), counted)]
    is_float = dtype.is_floating_point() and None in counted
    ascending = first is not None and last is not None and step == 1 and nonnegative(last - first)
    if not ascending:
        if is_float:  # keep tensors: they may need a gradient
            bounds[0], bounds[2] = (x if x.number is None else x.number for x in (start, delta))
        return b.call("range_tensor", *bounds, dtype=unless(dtype, T.INT64), device=DeviceOf())
    arguments = bounds[1:2] if first == 0 else bounds[:2]
    implied = T.FLOAT if is_float else T.INT64
    return b.call("torch.arange", *arguments, dtype=unless(dtype, implied), device=DeviceOf())


def _of_range(x: Arg, is_sized: bool) -> tuple[Any, Any]:
    """Return a number of a range as Python computes it exactly from sizes, and as a dim; None where it does not."""
    if is_sized and (sized := x.sized) is not None:
        return sized.one if sized.exact else None, sized.dim
    ints = None if x.is_float else x.ints
    return None, ints[0] if ints else None


# -------------------------------------------------------------------------------------------- like another tensor


def _dtype_or(dtype: int | None, default: T | None) -> T | None:
    return T(dtype) if dtype else default


@op("EyeLike", **rules("eye_like", infer=like, reads=0), flat=COUNTED)
def eye_like(b: Builder, input: Arg, *, dtype: int | None = None, k: int = 0) -> ast.expr:
    """Ones on the k-th diagonal, in the shape of the input."""
    wanted = _dtype_or(dtype, input.dtype)
    if wanted in WIDER:
        ones = b.call("torch.ones_like", input, dtype=T.INT64)
        return b("x.triu(k).tril(k).to(d)", x=ones, k=k, d=wanted)
    ones = b.call("torch.ones_like", input, dtype=unless(wanted, input.dtype))
    return b("x.triu(k).tril(k)" if k else "x.triu().tril()", x=ones, k=k)


@op("Trilu", traits=[FILLS], **rules("trilu", infer=same))
def trilu(b: Builder, input: Arg, k: Arg | None = None, *, upper: int = 1) -> ast.expr:
    """The upper (or lower) triangle, zeros elsewhere."""
    diagonal: Any = OMIT if k is None else k.as_int()
    if isinstance(diagonal, ast.Constant) and diagonal.value == 0:
        diagonal = OMIT
    name = "triu" if upper else "tril"

    def formula(x: Any) -> ast.expr:
        return b.call(b(f"x.{name}", x=x), diagonal)

    return computed(b, input.dtype, formula, input)


@op("Shape", traits=[TEXTS, SIZES], least=0.0, **rules("shape", reads=0))
def shape(b: Builder, data: Arg, *, start: int = 0, end: int | None = None) -> Sized:
    """Only for a tensor of unknown rank: other shapes are known at generation."""
    cut = "" if start == 0 and end is None else "[start:]" if end is None else "[start:end]"
    return Sized(None, whole=b(f"x.shape{cut}", x=data, start=start, end=end))


@op("Size", traits=[TEXTS, SIZES], least=0.0, **rules("size", reads=0))
def size(b: Builder, data: Arg) -> Sized:
    """The number of elements; of a shape, that is the rank."""
    shape = b.sized(data.value)
    if shape is None or shape.whole is None:
        return Sized.of(b("x.numel()", x=data))
    of = shape.whole
    return Sized.of(b("x.dim()", x=of.value) if isinstance(of, ast.Attribute) else b("len(s)", s=of))


@op(
    "OneHot", traits=[MOVES], data="values", still="values", **rules("one_hot"),
    flat={"indices": PIECEWISE_CONSTANT, "depth": SETS_SIZE},
)  # fmt: skip
def one_hot(b: Builder, indices: Arg, depth: Arg, values: Arg, *, axis: int = -1) -> ast.expr:
    """`values` is [off, on]. Indices from -depth to depth - 1 switch one element on, others none."""
    count = depth.as_int()
    if depth.is_float and not isinstance(count, ast.Constant):
        count = b("int(n)", n=count)
    elif isinstance(count, ast.Constant) and isinstance(count.value, float):
        count = literal(int(count.value))
    pair = values.constant
    places = b.call("one_hot_places", indices, count, axis=unless(axis, -1))
    if pair is not None and pair.size == 2 and values.dtype is not None and pair.dtype.kind in "biuf":
        off, on = (shortest(v, values.dtype) if isinstance(v, float) else v for v in pair.reshape(-1).tolist())
        if (off, on) == (0, 1):
            return converted(b, places, T.BOOL, values.dtype)
        if values.dtype in (T.FLOAT, T.INT64):
            return b("torch.where(p, on, off)", p=places, on=on, off=off)
    return b("torch.where(p, v[1], v[0])", p=places, v=values)


@op("NonZero", traits=[SELECTS], least=0.0, **rules("non_zero"), flat=INTEGERS)
def non_zero(b: Builder, X: Arg) -> ast.expr:
    """The positions of non-zero elements, in row-major order: one row per axis, one column per element."""
    return b("x.T", x=positions(b, X))


# ---------------------------------------------------------------------------------------------------- random


def _generator(b: Builder, seed: float | None) -> Any:
    """A seed gives the same numbers in every call; without one, torch's global generator is used."""
    if seed is None:
        return OMIT
    return b("torch.Generator(dev).manual_seed(seed)", dev=DeviceOf(), seed=int(seed))


def _drawn(b: Builder, empty: ast.expr, how: str, a: float, c: float, seed: float | None) -> ast.expr:
    """Return `empty.normal_(a, c)` or `empty.uniform_(a, c)`."""
    return b.call(b(f"x.{how}", x=empty), shortest(a), shortest(c), generator=_generator(b, seed))


def _empty(b: Builder, shape: list[int], dtype: int) -> ast.expr:
    return b.call("torch.empty", tuple(shape), dtype=unless(T(dtype), T.FLOAT), device=DeviceOf())


def _like(b: Builder, function: str, x: Arg, dtype: int | None) -> ast.expr:
    return b.call(function, x, dtype=unless(_dtype_or(dtype, x.dtype), x.dtype))


@op("RandomNormal", traits=[RANDOM])
def random_normal(
    b: Builder, *, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> ast.expr:
    return _drawn(b, _empty(b, shape, dtype), "normal_", mean, scale, seed)


@op("RandomUniform", traits=[RANDOM])
def random_uniform(
    b: Builder, *, shape: list[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> ast.expr:
    return _drawn(b, _empty(b, shape, dtype), "uniform_", low, high, seed)


@op("RandomNormalLike", traits=[RANDOM, ELEMENTWISE], infer=like)
def random_normal_like(
    b: Builder,
    input: Arg,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> ast.expr:
    if (mean, scale, seed) == (0.0, 1.0, None):
        return _like(b, "torch.randn_like", input, dtype)
    return _drawn(b, _like(b, "torch.empty_like", input, dtype), "normal_", mean, scale, seed)


@op("RandomUniformLike", traits=[RANDOM, ELEMENTWISE], infer=like)
def random_uniform_like(
    b: Builder, input: Arg, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> ast.expr:
    if (low, high, seed) == (0.0, 1.0, None):
        return _like(b, "torch.rand_like", input, dtype)
    return _drawn(b, _like(b, "torch.empty_like", input, dtype), "uniform_", low, high, seed)


@op("Bernoulli", traits=[RANDOM, ELEMENTWISE], infer=like, flat=PIECEWISE_CONSTANT)
def bernoulli(b: Builder, input: Arg, *, dtype: int | None = None, seed: float | None = None) -> ast.expr:
    """1 with the probability in the input, else 0."""
    drawn = b.call("torch.bernoulli", input, generator=_generator(b, seed))
    return converted(b, drawn, input.dtype, _dtype_or(dtype, input.dtype) or T.FLOAT)


@op("Multinomial", traits=[RANDOM], flat=INTEGERS)
def multinomial(b: Builder, input: Arg, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> ast.expr:
    """Draw classes with replacement. The input has the logarithms of their probabilities, up to a constant per row."""
    x = b("x.float()", x=input) if input.dtype == T.FLOAT16 else input.expr
    weights = b("F.softmax(x, dim=-1)", x=x)
    drawn = b.call("torch.multinomial", weights, sample_size, replacement=True, generator=_generator(b, seed))
    return converted(b, drawn, T.INT64, T(dtype))
