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
from onnxgen.graph.operators import Lowering, op
from onnxgen.graph.traits import AVERAGES, GLOBAL_POOL, PICKS, POOL
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.conv import f_pad, resolve_pads, same
from onnxgen.shapes import own
from onnxgen.shapes.dims import Dim, dim_max, dim_min
from onnxgen.shapes.info import info
from onnxgen.shapes.ranges import max_unpool as places


@dataclass
class Window:
    """The geometry of a pool, with one entry per spatial axis.

    Attributes:
        kernel: the size of the window; `min(kernel, size)` if the input may be smaller.
        begins, ends: the padding.
        overhang: how far the last window reaches past the padded end if the output size is rounded up. Negative: how
            many elements it leaves over.
        ceil: the output size is rounded up.
        empty: the shape of the result, if it is known to have no elements.
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
        """The padding, if torch's functions can do it: equal on both sides and at most half the kernel."""
        plain = [p for p in self.begins if isinstance(p, int) and p >= 0]
        if self.begins != self.ends or len(plain) < self.n or (any(o != 0 for o in self.overhang) and not self.ceil):
            return None
        too_large = any(p != 0 and isinstance(k, int) and 2 * p > k for p, k in zip(plain, self.kernel))
        return None if too_large else plain

    @property
    def sides(self) -> tuple[Dim, ...]:
        """The padding as `F.pad` takes it."""
        return f_pad(self.begins, self.ends)

    @property
    def all_sides(self) -> tuple[Dim, ...]:
        """The padding and the overhang as `F.pad` takes them."""
        return f_pad(self.begins, [e + o for e, o in zip(self.ends, self.overhang)])

    @property
    def overhang_sides(self) -> tuple[Dim, ...]:
        """The overhang as `F.pad` takes it."""
        return f_pad([0] * self.n, self.overhang)


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
    """Return the geometry that the attributes give (MaxPool-22 text)."""
    if not kernel_shape:
        raise b.error("attribute 'kernel_shape' is missing", CHECK)
    n = len(kernel_shape)
    stride, dilation = strides or [1] * n, dilations or [1] * n
    begins, ends = resolve_pads(b, X, auto_pad, pads, kernel_shape, stride, dilation)
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilation)]
    overhang: list[Dim] = [0] * n
    if ceil_mode and not auto_pad.startswith("SAME"):
        overhang = _overhangs(b, X, begins, ends, reaches, stride)
    ceil = any(o != 0 for o in overhang)
    kernel: list[Dim] = list(kernel_shape)
    for i, size in enumerate(() if X.shape is None or ceil else X.shape[2:]):
        if dilation[i] == 1 and begins[i] == ends[i] == 0:
            kernel[i] = _clipped(b, size, kernel_shape[i], stride[i])
            continue
        room = size + begins[i] + ends[i] - reaches[i]
        if isinstance(room, int) and -stride[i] < room < 0:
            overhang[i] = -room
    empty = _empty(X, begins, ends, overhang, reaches, stride)
    return Window(kernel, stride, dilation, begins, ends, overhang, ceil, empty)


def _empty(
    X: Arg, begins: list[Dim], ends: list[Dim], overhang: list[Dim], reach: list[int], stride: list[int]
) -> tuple[Dim, ...] | None:
    """Return the shape of a result without elements. onnxruntime's division of the room rounds toward zero."""
    if X.shape is None:
        return None
    counts: list[Dim] = []
    for i, size in enumerate(X.shape[2:]):
        room = size + begins[i] + ends[i] + overhang[i] - reach[i]
        below = isinstance(room, int) and room < 0
        counts.append(1 - (-room) // stride[i] if below else room // stride[i] + 1)
    return (*X.shape[:2], *counts) if any(c == 0 for c in counts) else None


def _clipped(b: Builder, size: Dim, kernel: int, stride: int) -> Dim:
    """Return the window over an axis that may be shorter than the kernel.

    There onnxruntime, unlike the standard, has one window over what is there, and torch raises an error. A network
    exported from torch keeps torch's behaviour; networks of other frameworks may need onnxruntime's.
    """
    if kernel == 1 or stride == 1 or (isinstance(size, int) and not kernel - stride < size < kernel):
        return kernel
    if not isinstance(size, int) and b.producer == "pytorch":
        return kernel
    return dim_min(kernel, size if stride >= kernel else dim_max(size, kernel - stride + 1))


def _overhangs(
    b: Builder, X: Arg, begins: list[Dim], ends: list[Dim], reaches: list[int], strides: list[int]
) -> list[Dim]:
    """Return how far each axis's last window reaches past the padded end. None starts in the padding at the end."""
    if X.shape is None:
        raise b.error("ceil_mode needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
    overhangs = []
    for size, begin, end, reach, stride in zip(X.shape[2:], begins, ends, reaches, strides):
        total = size + begin + end
        count = dim_min((total - reach + stride - 1) // stride + 1, (size + begin + stride - 1) // stride)
        overhangs.append((count - 1) * stride + reach - total)
    return overhangs


def _options(w: Window, padding: list[int] | None) -> dict[str, Any]:
    return {"stride": unless(same(w.stride), same(w.kernel)), "padding": unless(same(padding or [0]), 0)}


def spatial_rank(b: Builder, n: int) -> int:
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
    n = spatial_rank(b, w.n)
    if w.empty is not None:
        pooled = b("x.new_empty(s)", x=X, s=w.empty)
        return [pooled, b("x.new_empty(s, dtype=d)", x=X, s=w.empty, d=ir.DataType.INT64)] if b.wants(1) else pooled
    # torch cannot pool integers on some devices and ranks; floats hold those that ONNX allows (8 bits) exactly
    back = None if X.is_float else X.dtype
    x = X.expr if back is None else b("x.float()", x=X)
    if b.wants(1):
        pooled = b.call(
            "max_pool_with_indices", x, tuple(w.kernel), tuple(w.stride), tuple(w.dilation), w.all_sides,
            column_major=unless(bool(storage_order), False),
        )  # fmt: skip
        if back is None:
            return b.unpack(pooled, 2)
        both = b.let(pooled, "pooled")
        return [b("p[0].to(d)", p=both, d=back), b("p[1]", p=both)]
    padding, ceil = w.padding, w.ceil
    if padding is None:
        x, ceil = b("F.pad(x, sides, value=float('-inf'))", x=x, sides=w.all_sides), False
    dilation = unless(same(w.dilation), 1)
    pooled = b.call(
        f"F.max_pool{n}d", x, same(w.kernel), **_options(w, padding), dilation=dilation, ceil_mode=unless(ceil, False)
    )
    return pooled if back is None else b("y.to(d)", y=pooled, d=back)


@op("MaxUnpool", ranges=places)
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
    """Write values to the positions that they were taken from, in a tensor of `output_shape` or of the pooled size."""
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
    """Return True if the indices count in a tensor of this shape, rather than in the area that all windows cover.

    The standard computes pads if the shape is smaller than that area. If it is larger, the standard's test adds zeros
    at the ends and counts in the area, unless the indices come from a pool over a tensor of this shape.
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
    plain, padding = _is_plain(X, w), w.padding
    if plain and padding is not None:
        include = unless(bool(count_include_pad) or not any(padding), True)
        options = {**_options(w, padding), "ceil_mode": unless(w.ceil, False), "count_include_pad": include}
        return b.call(f"F.avg_pool{w.n}d", X, same(w.kernel), **options)
    if plain and count_include_pad and not any(o != 0 for o in w.overhang):
        return b.call(f"F.avg_pool{w.n}d", b("F.pad(x, s)", x=X, s=w.sides), same(w.kernel), **_options(w, None))
    windows = tuple(w.kernel), tuple(w.stride), tuple(w.dilation)
    return b.call("average_pool", X, *windows, w.sides, w.overhang_sides, bool(count_include_pad))


def _is_plain(X: Arg, w: Window) -> bool:
    """Return True if torch has a function for these windows: over up to three axes, without dilation."""
    if w.n > 3 or any(d != 1 for d in w.dilation):
        return False
    # F.avg_pool3d compares the window with the size before padding
    pairs = zip((X.shape or ())[2:], w.kernel) if w.n == 3 else ()
    return not any(isinstance(s, int) and isinstance(k, int) and s < k for s, k in pairs)


@op("SummedPool", domain=DOMAIN, traits=[POOL], reference=own.SummedPool)
def summed_pool(
    b: Builder, X: Arg, *,
    auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, kernel_shape: list[int],
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """AveragePool as onnxruntime's quantised operator: summed in its order; padding counts past the end, too."""
    w = window(b, X, auto_pad, ceil_mode, None, kernel_shape, pads, strides)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    windows = tuple(w.kernel), tuple(w.stride)
    return b.call("summed_pool", X, *windows, w.sides, w.overhang_sides, bool(count_include_pad))


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
    """Not `F.lp_pool2d`, which takes no absolute values for odd p and does not pad."""
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


def _global_pool(kind: str, method: str) -> Lowering:
    def lower(b: Builder, X: Arg) -> ast.expr:
        n = X.known_rank - 2
        if 1 <= n <= 3:
            return b(f"F.adaptive_{kind}_pool{n}d(x, 1)", x=X)
        return b(f"x.{method}(axes, keepdim=True)", x=X, axes=_axes(X)) if n > 0 else X.expr

    return lower


op("GlobalAveragePool", traits=[GLOBAL_POOL, AVERAGES])(_global_pool("avg", "mean"))
op("GlobalMaxPool", traits=[GLOBAL_POOL, PICKS])(_global_pool("max", "amax"))


@op("GlobalLpPool", traits=[GLOBAL_POOL])
def global_lp_pool(b: Builder, X: Arg, *, p: float = 2) -> ast.expr:
    power = int(p) if p == int(p) else p
    norm = "torch.linalg.vector_norm(x, p, dim=axes, keepdim=True)"
    return b(norm, x=X, p=power, axes=_axes(X)) if X.known_rank > 2 else b("x.abs()", x=X)
