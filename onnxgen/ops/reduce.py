"""Reductions over axes, argmax and argmin, normalisations without parameters, and sorting."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, DeviceOf, literal, unless
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT, op
from onnxgen.graph.traits import AVERAGES, KEEPS_SIGN, NORMALISES, PICKS, REDUCTION, SELECTS, WHOLE
from onnxgen.lowering.builder import Arg, Builder, Unpack
from onnxgen.ops.cast import WIDER, computed, is_integer
from onnxgen.ops.rules import rules
from onnxgen.shapes import elements, usual
from onnxgen.shapes.dims import Dim, dim_max, dim_min, product, symbols

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
EMPTY_IS_NONE = ("any", "all", "logsumexp")  # for these an empty `dim` does not mean all axes
Dims = Any  # an int, a list of ints, or an expression; None: all axes


class Reduction:
    """The axes of `x` to reduce over, and torch's arguments for them.

    Attributes:
        axes: the axes as ints; None if they or the rank are not known.
        dims: torch's `dim`; None for all axes, without keeping them.
        keep: torch's `keepdim`.
        may_be_none: at run time there may be no axes, which means all axes in ONNX.
    """

    may_be_none = False

    def __init__(self, b: Builder, x: Arg, axes: Arg | None, keepdims: int) -> None:
        self.b, self.x, self.keep = b, x, bool(keepdims)
        known = None if axes is None else axes.ints
        self.axes: list[int] | None = None
        wanted = [d for d in known or [] if isinstance(d, int)]
        if axes is not None and wanted != known:
            self.dims: Dims = axes.as_ints()
            self.may_be_none = known is None and not (axes.shape and isinstance(axes.shape[0], int) and axes.shape[0])
            return
        rank = x.rank
        self.keep = self.keep and rank != 0
        if rank is not None:
            self.axes = sorted({a % rank for a in wanted}) if wanted and rank else list(range(rank))
        self.dims = self._torch_dims(wanted, rank)

    def _torch_dims(self, wanted: list[int], rank: int | None) -> Dims:
        """Return torch's `dim` for axes as the file writes them; without any, for all."""
        is_whole = self.axes is not None and len(self.axes) == rank
        if not self.keep and (is_whole or not wanted):
            return None
        if wanted:
            return wanted[0] if len(wanted) == 1 else wanted
        return self.b("list(range(x.dim()))", x=self.x) if rank is None else literal(self.axes)

    @property
    def is_empty(self) -> bool:
        """True if it is known that there is nothing to reduce."""
        return bool(self.axes) and self.x.shape is not None and any(self.x.shape[a] == 0 for a in self.axes or [])

    @property
    def may_be_empty(self) -> bool:
        """True if an operator counts what is reduced, as boxes that a suppression keeps: there may be nothing."""
        shape = self.x.shape
        return shape is not None and any(s.selected for a in self.axes or [] for s in symbols(shape[a]).values())

    @property
    def count(self) -> Dim | ast.expr:
        """How many elements are reduced to one; at least 1 where there may be none."""
        if self.axes is None or self.x.shape is None:
            return self.b("x.numel() // y.numel()", x=self.x, y=self.call("sum", self.x.expr))
        count = product(self.x.shape[a] for a in self.axes)
        return dim_max(count, 1) if self.may_be_empty else count

    @property
    def options(self) -> dict[str, Any]:
        """The arguments `dim` and `keepdim`."""
        dim = OMIT if self.dims is None else tuple(self.dims) if isinstance(self.dims, list) else self.dims
        return {"dim": dim, "keepdim": unless(self.keep and self.dims is not None, False)}

    def call(self, name: str, x: ast.expr, dtype: Any = OMIT) -> ast.expr:
        """Return `x.name(dim=..., keepdim=...)`."""
        options = self.options
        if self.may_be_none and name in EMPTY_IS_NONE:
            options["dim"] = self.b("dims or list(range(x.dim()))", dims=options["dim"], x=self.x)
        return self.b.call(self.b(f"x.{name}", x=x), **options, dtype=dtype)


# What to compute before the reduction, the reduction, and what to compute of the reduced tensor `r`. All of it in
# numpy, and of two dims (None: constants are not folded, either).
REDUCTIONS: dict[str, tuple[str, str, str, Callable[..., Any], Callable[..., Any] | None]] = {
    "ReduceSum": ("x", "sum", "r", np.sum, operator.add),
    "ReduceMean": ("x", "mean", "r", np.mean, elements.undefined),
    "ReduceProd": ("x", "prod", "r", np.prod, operator.mul),
    "ReduceMax": ("x", "amax", "r", np.max, dim_max),
    "ReduceMin": ("x", "amin", "r", np.min, dim_min),
    "ReduceL1": ("torch.abs(x)", "sum", "r", lambda x, **how: np.abs(x).sum(**how), None),
    "ReduceL2": ("x.square()", "sum", "torch.sqrt(r)", lambda x, **how: np.sqrt((x * x).sum(**how)), None),
    "ReduceLogSum": ("x", "sum", "torch.log(r)", lambda x, **how: np.log(x.sum(**how)), None),
    "ReduceLogSumExp": ("x", "logsumexp", "r", lambda x, **how: np.log(np.exp(x).sum(**how)), None),
    "ReduceSumSquare": ("x.square()", "sum", "r", lambda x, **how: (x * x).sum(**how), None),
}
FRACTIONAL = {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}  # computed in float64 if the elements are integers


def _reduce(name: str) -> Callable[..., ast.expr]:
    before, how, after, *_ = REDUCTIONS[name]

    def lower(
        b: Builder, data: Arg, axes: Arg | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> ast.expr:
        def formula(x: Any) -> ast.expr:
            values = b(before, x=x)
            if nothing is not True:
                reduced = _reduced(b, how, values, reduction, data, integer and name not in FRACTIONAL)
                values = reduced if nothing is False else b("r if a.numel() else x", r=reduced, a=axes, x=values)
            return b(after, r=values)

        nothing = _reduces_nothing(axes, noop_with_empty_axes)
        reduction = Reduction(b, data, axes, keepdims)
        integer = is_integer(b, data)
        if integer and name in FRACTIONAL:
            return b("x.to(d)", x=formula(b("x.double()", x=data)), d=data.dtype)
        if name == "ReduceL2" and nothing is False:
            return b.call("torch.linalg.vector_norm", data, **reduction.options)
        return computed(b, data.dtype, formula, data, order=how in ("amax", "amin"))

    return lower


LEAST = dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), 0.0)
TRAITS = {
    "ReduceMean": [AVERAGES], "ReduceMax": [PICKS], "ReduceMin": [PICKS], "ReduceSum": [KEEPS_SIGN, WHOLE],
    "ReduceProd": [KEEPS_SIGN],
}  # fmt: skip

for _name, (*_, _numbers, _dims) in REDUCTIONS.items():
    op(
        _name, traits=[REDUCTION, *TRAITS.get(_name, ())], least=LEAST.get(_name), numbers=_numbers, dims=_dims,
        kernel=usual.reducing(_numbers, 13) if _name == "ReduceSum" else None,
    )(_reduce(_name))  # fmt: skip


def _reduces_nothing(axes: Arg | None, noop: int) -> bool | None:
    """True if nothing is reduced, since with `noop_with_empty_axes` no axes mean none; None if known at run time."""
    if not noop:
        return False
    if axes is not None and axes.ints is None and not (axes.shape and isinstance(axes.shape[0], int)):
        return None
    return axes is None or axes.ints == [] or bool(axes.shape and axes.shape[0] == 0)


def _reduced(b: Builder, how: str, x: ast.expr, r: Reduction, data: Arg, integer: bool) -> ast.expr:
    """Write one reduction, in the dtype of its input."""
    # torch sums and multiplies small integers as int64 by default
    dtype = unless(data.dtype, ir.DataType.INT64) if integer and data.dtype not in WIDER else OMIT
    if how == "sum" or (how == "mean" and r.is_empty):  # the mean of nothing is 0 in onnxruntime, where torch has NaN
        return r.call("sum", x, dtype)
    if how == "mean" and (integer or r.may_be_empty):
        template = "torch.div(s, n, rounding_mode='trunc')" if integer else "s / n"
        if data.dtype in HALF:  # the sum may pass their range
            return b("(s / n).to(d)", s=r.call("sum", x, ir.DataType.FLOAT), n=r.count, d=data.dtype)
        return b(template, s=r.call("sum", x, dtype), n=r.count)
    if how == "prod":
        return _product(b, x, r, dtype)
    if how in ("amax", "amin"):
        return _extreme(b, how, x, r, data)
    if how == "logsumexp" and r.dims is None:
        return b("x.flatten().logsumexp(0)", x=x)
    return r.call(how, x)


def _product(b: Builder, x: ast.expr, r: Reduction, dtype: Any) -> ast.expr:
    """Write a product; torch multiplies along one axis at a time."""
    if r.dims is None:
        return b.call(b("x.prod", x=x), dtype=dtype)
    if r.axes is None:
        return b("prod_over(x, dims, keepdim=k)", x=x, dims=_as_list(r.dims), k=r.keep)
    for axis in reversed(r.axes):
        x = b.call(b("x.prod", x=x), dim=axis, keepdim=unless(r.keep, False), dtype=dtype)
    return x


def _as_list(dims: Dims) -> Any:
    return [dims] if isinstance(dims, int) else [] if dims is None else dims


def _extreme(b: Builder, how: str, x: ast.expr, r: Reduction, data: Arg) -> ast.expr:
    """Write a maximum or minimum; without elements it is the lowest (or highest) number of the type (ReduceMax-20)."""
    if data.dtype == ir.DataType.BOOL:
        return r.call("any" if how == "amax" else "all", x)
    if r.may_be_empty or (r.axes is None and data.shape is not None and 0 in data.shape):
        return b("extreme(x, dims, keepdim=k, largest=l)", x=x, dims=_as_list(r.dims), k=r.keep, l=how == "amax")
    if not r.is_empty or data.dtype is None:
        return r.call(how, x)
    dtype = data.dtype
    if dtype.is_floating_point():
        limit: float | int = float("-inf") if how == "amax" else float("inf")
    else:
        bounds = np.iinfo(np.int64 if dtype == ir.DataType.UINT64 else dtype.numpy())
        limit = int(bounds.min if how == "amax" else bounds.max)
    kept = unless(WIDER.get(dtype, dtype), ir.DataType.FLOAT)
    return b.call("torch.full", b.out().shape, limit, dtype=kept, device=DeviceOf())


# ------------------------------------------------------------------------------------------------ argmax and argmin


def _position(function: str) -> Callable[..., ast.expr]:
    def lower(b: Builder, data: Arg, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> ast.expr:
        def formula(x: Any) -> ast.expr:
            keep = unless(bool(keepdims), False)
            if not select_last_index:
                return b.call(b(f"x.{function}", x=x), dim=axis, keepdim=keep)
            flipped = b(f"x.flip(axis).{function}", x=x, axis=axis)
            last = data.shape[axis] - 1 if data.shape else b("x.shape[axis] - 1", x=data, axis=axis)
            return b("last - place", last=last, place=b.call(flipped, dim=axis, keepdim=keep))

        return computed(b, data.dtype, formula, data, order=True, back=False)

    return lower


for _name, _numbers in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
    _rules = rules("position", elements=elements.position(_numbers), flat=INTEGERS)
    op(_name, traits=[SELECTS], least=0.0, **_rules)(_position(_name.lower()))


@op("Hardmax", since=13, **rules("hardmax"), flat=PIECEWISE_CONSTANT)
def hardmax(b: Builder, input: Arg, *, axis: int = -1) -> ast.expr:
    """1 at the first greatest element along the axis, 0 elsewhere."""
    if input.rank == 0:
        return b("torch.ones_like(x)", x=input)
    if 0 in (input.shape or ()):  # torch has no argmax of no elements
        return b("torch.zeros_like(x)", x=input)
    return b("torch.zeros_like(x).scatter(a, x.argmax(a, keepdim=True), 1.0)", x=input, a=axis)


@op("Hardmax")
def hardmax_of_matrix(b: Builder, input: Arg, *, axis: int = 1) -> ast.expr:
    """Before opset 13, the tensor is flattened to a matrix at the axis."""
    rank = input.known_rank
    axis = axis % rank if rank else 0
    if axis == rank - 1 or rank == 0 or 0 in (input.shape or ()):
        return hardmax(b, input, axis=-1)
    x = b("x.reshape(1, -1)", x=input) if axis == 0 else b("x.flatten(a)", x=input, a=axis)
    return b("torch.zeros_like(y).scatter(-1, y.argmax(-1, keepdim=True), 1.0).reshape(x.shape)", y=b.let(x), x=input)


# ------------------------------------------------------------------------------------------------------ normalising

# At most the smallest number of each type, so that only a norm of 0 is replaced, and 0 / 0 is 0.
TINY = {ir.DataType.FLOAT16: 6e-8, ir.DataType.BFLOAT16: 1e-40, ir.DataType.DOUBLE: 5e-324}


@op("LpNormalization", traits=[NORMALISES], **rules("lp_norm"))
def lp_normalization(b: Builder, input: Arg, *, axis: int = -1, p: int = 2) -> ast.expr:
    """Divided by the norm along the axis; zeros stay zeros."""
    eps = TINY.get(input.dtype or ir.DataType.FLOAT, 1e-45)
    return b.call("F.normalize", input, p=unless(p, 2), dim=unless(axis, 1), eps=eps)


@op("MeanVarianceNormalization", traits=[NORMALISES])
def mean_variance_normalization(b: Builder, X: Arg, *, axes: list[int] | tuple[int, ...] = (0, 2, 3)) -> ast.expr:
    """`(x - mean) / (deviation + 1e-9)`: the function body of the operator."""
    return b(
        "(x - x.mean(dims, keepdim=True)) / (x.std(dims, correction=0, keepdim=True) + 1e-9)", x=X, dims=tuple(axes)
    )


# --------------------------------------------------------------------------------------------------------- sorting


@op("TopK", traits=[SELECTS], renames={"k": "K"}, **rules("top_k"))
def top_k(b: Builder, X: Arg, K: Arg, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Unpack | list[Any]:
    """Values and their positions. Equal elements are in the order of the input, which torch.topk does not promise."""

    def formula(x: Any) -> ast.expr:
        return b.call("stable_topk", x, K.as_int(), dim=unless(axis, -1), largest=unless(bool(largest), True))

    pair = computed(b, X.dtype, formula, X, order=True, back=False)
    if X.dtype not in WIDER or not b.wants(0):
        return b.unpack(pair, 2)
    both = b.let(pair)
    template = "unordered(x)" if X.dtype == ir.DataType.UINT64 else "x.to(d)"
    return [b(template, x=b("p[0]", p=both), d=X.dtype), b("p[1]", p=both)]


@op("Unique", traits=[SELECTS], still="X")
def unique(b: Builder, X: Arg, *, axis: int | None = None, sorted: int = 1) -> Unpack:
    """The distinct elements (or slices along the axis), their first positions, the inverse, and their counts."""
    return b.unpack(b.call("distinct", X, dim=unless(axis, None), sorted=unless(bool(sorted), True)), 4)
