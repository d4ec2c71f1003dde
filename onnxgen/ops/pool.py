"""Pooling: torch's functions where they mean the same, helpers elsewhere."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import CHECK, FIX_SHAPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import op
from onnxgen.graph.traits import AVERAGES, GLOBAL_POOL, PICKS, POOL
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.conv import same
from onnxgen.ops.pads import resolve_pads
from onnxgen.shapes.dims import Dim, dim_max, dim_min
from onnxgen.shapes.info import info


@dataclass
class Window:
    """The geometry of a pool: one entry a spatial axis.

    Attributes:
        kernel: the size of the window; `min(kernel, size)` where the input may be smaller than it.
        begins, ends: padding.
        overhang: what the last window reaches past the padded end, if the output size is rounded up (negative: what it
            leaves over).
        ceil: the output size is rounded up.
        empty: the result's shape, if it is known that no window fits.
    """

    kernel: list[Dim]
    stride: list[int]
    dilation: list[int]
    begins: list[Dim]
    ends: list[Dim]
    overhang: list[Dim]
    ceil: bool
    empty: tuple[Dim, ...] | None

    @property
    def n(self) -> int:
        return len(self.kernel)

    @property
    def padding(self) -> list[int] | None:
        """The padding that torch's own functions can do: alike on both sides, at most half the kernel; else None."""
        plain = [p for p in self.begins if isinstance(p, int)]
        if (
            (any(o != 0 for o in self.overhang) and not self.ceil)
            or self.begins != self.ends
            or len(plain) < self.n
            or any(p != 0 and isinstance(k, int) and 2 * p > k for p, k in zip(plain, self.kernel))
        ):
            return None
        return plain if min(plain, default=0) >= 0 else None

    @property
    def sides(self) -> tuple[Dim, ...]:
        """The padding as `F.pad` takes it: last axis first."""
        return tuple(p for pair in zip(reversed(self.begins), reversed(self.ends)) for p in pair)

    @property
    def all_sides(self) -> tuple[Dim, ...]:
        """The padding with what the last windows reach past it."""
        ends = [e + o for e, o in zip(self.ends, self.overhang)]
        return tuple(p for pair in zip(reversed(self.begins), reversed(ends)) for p in pair)


def window(
    b: Builder,
    X: Arg,
    auto_pad: str,
    ceil_mode: int,
    dilations: list[int] | None,
    kernel_shape: list[int] | None,
    pads: list[int] | None,
    strides: list[int] | None,
) -> Window:
    """The geometry that the attributes give (MaxPool-22 text)."""
    if not kernel_shape:
        raise b.error("attribute 'kernel_shape' is missing", CHECK)
    n = len(kernel_shape)
    stride, dilation = strides or [1] * n, dilations or [1] * n
    begins, ends = resolve_pads(b, X, auto_pad, pads, kernel_shape, stride, dilation)
    ceil = bool(ceil_mode) and not auto_pad.startswith("SAME")
    overhang: list[Dim] = [0] * n
    if ceil:
        shape = X.shape
        if shape is None:
            raise b.error("ceil_mode needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
        for i in range(n):
            reach = (kernel_shape[i] - 1) * dilation[i] + 1
            overhang[i] = _overhang(shape[i + 2], begins[i], ends[i], reach, stride[i])
        ceil = any(o != 0 for o in overhang)
    kernel: list[Dim] = list(kernel_shape)
    for i in range(n):
        if X.shape is None or ceil:
            continue
        if dilation[i] == 1 and begins[i] == ends[i] == 0:
            kernel[i] = _clipped(b, X.shape[i + 2], kernel_shape[i], stride[i])
            continue
        room = X.shape[i + 2] + begins[i] + ends[i] - (kernel_shape[i] - 1) * dilation[i] - 1
        if isinstance(room, int) and -stride[i] < room < 0:
            overhang[i] = -room
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilation)]
    empty = _empty(X, begins, ends, overhang, reaches, stride)
    return Window(kernel, stride, dilation, begins, ends, overhang, ceil, empty)


def _empty(
    X: Arg, begins: list[Dim], ends: list[Dim], overhang: list[Dim], reach: list[int], stride: list[int]
) -> tuple[Dim, ...] | None:
    """The shape of a result without elements, as onnxruntime counts windows: divided towards zero, plus one."""
    if X.shape is None:
        return None
    counts: list[Dim] = []
    for i, size in enumerate(X.shape[2:]):
        room = size + begins[i] + ends[i] + overhang[i] - reach[i]
        below = isinstance(room, int) and room < 0
        counts.append(1 - (-room) // stride[i] if below else room // stride[i] + 1)
    return (*X.shape[:2], *counts) if any(c == 0 for c in counts) else None


def _clipped(b: Builder, size: Dim, kernel: int, stride: int) -> Dim:
    """The window over an axis that may be shorter: onnxruntime, not the text, then has one, of what is there.

    Torch refuses it. So a network that torch wrote never had a shorter axis, and where it gets one the same line that
    its author wrote says so; networks of other frameworks may count on it.
    """
    if kernel == 1 or stride == 1 or (isinstance(size, int) and not kernel - stride < size < kernel):
        return kernel
    if not isinstance(size, int) and b.producer == "pytorch":
        return kernel
    return dim_min(kernel, size if stride >= kernel else dim_max(size, kernel - stride + 1))


def _overhang(size: Dim, begin: Dim, end: Dim, reach: int, stride: int) -> Dim:
    """How far the last window reaches past the padded end; no window starts in the padding at the end."""
    total = size + begin + end
    count = dim_min((total - reach + stride - 1) // stride + 1, (size + begin + stride - 1) // stride)
    return (count - 1) * stride + reach - total


def _options(w: Window, padding: list[int] | None) -> dict[str, Any]:
    stride = same(w.stride)
    return {
        "stride": unless(stride, same(w.kernel)),
        "padding": OMIT if padding is None or not any(padding) else same(padding),
    }


def _spatial(b: Builder, n: int) -> int:
    if not 1 <= n <= 3:
        raise b.error(f"pooling over {n} axes has no PyTorch function", "PyTorch pools over 1 to 3 axes")
    return n


# ---------------------------------------------------------------------------------------------------------- max


@op("MaxPool", traits=[POOL, PICKS])
def max_pool(
    b: Builder,
    X: Arg,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    storage_order: int = 0,
    strides: list[int] | None = None,
) -> Any:
    w = window(b, X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    n = _spatial(b, w.n)
    if w.empty is not None:
        made = b("x.new_empty(s)", x=X, s=w.empty)
        return [made, b("x.new_empty(s, dtype=d)", x=X, s=w.empty, d=ir.DataType.INT64)] if b.wants(1) else made
    # torch pools no integers on some devices and ranks: floats hold those that ONNX allows (8 bits) exactly
    x = X.expr if X.is_float or X.dtype is None else b("x.float()", x=X)
    back = OMIT if X.is_float or X.dtype is None else X.dtype
    if b.wants(1):
        made = b.call(
            "max_pool_with_indices", x, tuple(w.kernel), tuple(w.stride), tuple(w.dilation), w.all_sides,
            column_major=unless(bool(storage_order), False),
        )  # fmt: skip
        if back is OMIT:
            return b.unpack(made, 2)
        both = b.let(made, "pooled")
        return [b("p[0].to(d)", p=both, d=back), b("p[1]", p=both)]
    padding, ceil = w.padding, w.ceil
    if padding is None:
        x, ceil = b("F.pad(x, sides, value=float('-inf'))", x=x, sides=w.all_sides), False
    dilation = unless(same(w.dilation), 1)
    made = b.call(
        f"F.max_pool{n}d", x, same(w.kernel), **_options(w, padding), dilation=dilation, ceil_mode=unless(ceil, False)
    )
    return made if back is OMIT else b("y.to(d)", y=made, d=back)


@op("MaxpoolWithMask", domain="com.microsoft")
def maxpool_with_mask(
    b: Builder, X: Arg, M: Arg, *, auto_pad: str = "NOTSET", kernel_shape: list[int], pads: list[int] | None = None,
    storage_order: int = 0, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """A row of a window ends at the first 0 of its mask; a window of which nothing is left is the lowest number."""
    w = window(b, X, auto_pad, 0, None, kernel_shape, pads, strides)
    _spatial(b, w.n)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    return b.call("masked_max_pool", X, M, tuple(w.kernel), tuple(w.stride), w.all_sides)


@op("MaxUnpool")
def max_unpool(
    b: Builder,
    X: Arg,
    I: Arg,  # noqa: E741  # the schema's name
    output_shape: Arg | None = None,
    *,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    """Values back at the places they were taken from, in a tensor of `output_shape` or of the size that was pooled."""
    if not kernel_shape or X.shape is None:
        raise b.error("the kernel_shape or the shape of the input is unknown", FIX_SHAPE)
    n = len(kernel_shape)
    stride, pad = strides or [1] * n, pads or [0] * 2 * n
    sizes = [(X.shape[i + 2] - 1) * stride[i] + kernel_shape[i] for i in range(n)]
    if output_shape is None:
        pooled = [s - pad[i] - pad[n + i] for i, s in enumerate(sizes)]
        return b("max_unpool(x, i, s)", x=X, i=I, s=(*X.shape[:2], *pooled))
    counted = OMIT if _counts_in(I, output_shape.ints, sizes) else (*X.shape[:2], *sizes)
    return b.call("max_unpool", X, I, output_shape.as_ints(), counted)


def _counts_in(index: Arg, shape: list[Dim] | None, sizes: list[Dim]) -> bool:
    """Whether indices are those of a tensor of this shape.

    The standard generates pads where the shape is smaller than all the windows together. Where it is larger, its test
    fills up with zeros at the ends, and counts in what the windows cover: this can't be where the indices come from a
    pool of that very shape.
    """
    if shape is None:
        return False
    node = made_by(index.value, "MaxPool")
    if node is not None and info(node.inputs[0]).shape == tuple(shape):
        return True
    return all(isinstance(s, int) and isinstance(w, int) and s <= w for s, w in zip(shape[2:], sizes))


# ------------------------------------------------------------------------------------------------- average and Lp


@op("AveragePool", traits=[POOL, AVERAGES])
def average_pool(
    b: Builder,
    X: Arg,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    w = window(b, X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    plain = all(d == 1 for d in w.dilation) and w.n <= 3
    if w.n == 3 and X.shape is not None:  # torch's own compares the window with the size before padding
        plain = plain and not any(
            isinstance(s, int) and isinstance(k, int) and s < k for s, k in zip(X.shape[2:], w.kernel)
        )
    padding = w.padding
    if plain and padding is not None:
        include = OMIT if not any(padding) else unless(bool(count_include_pad), True)
        options = {**_options(w, padding), "ceil_mode": unless(w.ceil, False), "count_include_pad": include}
        return b.call(f"F.avg_pool{w.n}d", X, same(w.kernel), **options)
    if plain and count_include_pad and not any(o != 0 for o in w.overhang):
        return b.call(f"F.avg_pool{w.n}d", b("F.pad(x, s)", x=X, s=w.sides), same(w.kernel), **_options(w, None))
    overhang = tuple(p for o in reversed(w.overhang) for p in (0, o))
    return b.call(
        "average_pool", X, tuple(w.kernel), tuple(w.stride), tuple(w.dilation), w.sides, overhang,
        bool(count_include_pad),
    )  # fmt: skip


@op("SummedPool", domain=DOMAIN, traits=[POOL])
def summed_pool(
    b: Builder, X: Arg, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, kernel_shape: list[int],
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """AveragePool as onnxruntime's quantised one has it: to the last digit, and padding counts behind the end, too."""
    w = window(b, X, auto_pad, ceil_mode, None, kernel_shape, pads, strides)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    overhang = tuple(p for o in reversed(w.overhang) for p in (0, o))
    return b.call(
        "summed_pool", X, tuple(w.kernel), tuple(w.stride), w.sides, overhang, bool(count_include_pad)
    )  # fmt: skip


@op("LpPool", traits=[POOL])
def lp_pool(
    b: Builder,
    X: Arg,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: list[int] | None = None,
    kernel_shape: list[int] | None = None,
    p: float = 2,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    """`F.lp_pool2d` is no norm for odd p (it takes no absolute values) and pads nothing."""
    w = window(b, X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    sides = w.all_sides
    x = b("F.pad(x, s)", x=X, s=sides) if any(s != 0 for s in sides) else X.expr
    power = int(p) if p == int(p) else p
    return b.call("lp_pool", x, power, tuple(w.kernel), tuple(w.stride), tuple(w.dilation))


# ------------------------------------------------------------------------------------------------------- global


def _axes(X: Arg) -> tuple[int, ...]:
    return tuple(range(2, X.known_rank))


@op("GlobalAveragePool", traits=[GLOBAL_POOL, AVERAGES])
def global_average_pool(b: Builder, X: Arg) -> ast.expr:
    n = X.known_rank - 2
    if 1 <= n <= 3:
        return b(f"F.adaptive_avg_pool{n}d(x, 1)", x=X)
    return b("x.mean(axes, keepdim=True)", x=X, axes=_axes(X)) if n > 0 else X.expr


@op("GlobalMaxPool", traits=[GLOBAL_POOL, PICKS])
def global_max_pool(b: Builder, X: Arg) -> ast.expr:
    n = X.known_rank - 2
    if 1 <= n <= 3:
        return b(f"F.adaptive_max_pool{n}d(x, 1)", x=X)
    return b("x.amax(axes, keepdim=True)", x=X, axes=_axes(X)) if n > 0 else X.expr


@op("GlobalLpPool", traits=[GLOBAL_POOL])
def global_lp_pool(b: Builder, X: Arg, *, p: float = 2) -> ast.expr:
    power = int(p) if p == int(p) else p
    norm = "torch.linalg.vector_norm(x, p, dim=axes, keepdim=True)"
    return b(norm, x=X, p=power, axes=_axes(X)) if X.known_rank > 2 else b("x.abs()", x=X)
