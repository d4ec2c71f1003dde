"""Writes constant tensors as short expressions: `torch.arange(n)`, a mask, a grid, or the numbers.

Every form equals the array bit for bit: it is exact in every order of evaluation, or the array is
compared with the same operations in numpy's IEEE arithmetic, one after the other. There are no
forms for functions that torch may round differently on other machines (sines, powers).

`spaced` writes evenly spaced floats: `torch.linspace(0.0, 1.0, 9)`, `(torch.arange(8) + 0.5) / 8`. Each operation on
the counts is IEEE arithmetic, which torch and numpy round alike. `torch.linspace` is two of them, and torch rounds them
together on some processors. So it is written where both ways give the same bits, or where the bits are loaded from the
sidecar anyway. `points` writes tables: the points of a grid, rows with one number each, sums and products of vectors.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import OMIT, call, literal, quote, shortest, unless
from onnxgen.weights.dtypes import TORCH_DTYPES

# torch has neither arange nor tril for these types
PLAIN_ONLY = {d for d in ir.DataType if d.name.startswith(("UINT16", "UINT32", "UINT64", "FLOAT8"))}
# a floating-point type has all integers up to this one
WHOLE = {ir.DataType.FLOAT: 1 << 24, ir.DataType.DOUBLE: 1 << 53, ir.DataType.FLOAT16: 1 << 11}
MAX_LISTED = 8  # numbers that are written one by one; larger tensors without a form go to the sidecar
MAX_INLINE_ELEMENTS = 32  # texts that are written one by one, and tensors of which each axis is in the form
MAX_INLINE_CHARACTERS = 2000  # so do longer texts
ANY: Any = slice(None)


def tensor_literal(
    array: NDArray[Any], dtype: ir.DataType, device: Any = OMIT, is_loaded: bool = False, has_form: bool = True
) -> ast.expr | None:
    """Return an expression that makes this constant tensor bit for bit, or None if it is large and has no form.

    Args:
        array: the elements.
        dtype: of the tensor.
        device: an expression for the tensor's device (default: torch's default device).
        is_loaded: the sidecar has the elements, so they may differ where two of torch's kernels do (`linspace`).
        has_form: whether an expression that makes them is looked for; else they are listed.
    """
    if array.dtype.kind == "c":
        return None
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float32 if dtype.is_floating_point() else np.int64)
    if TORCH_DTYPES[dtype] == "float32":  # also types that torch lacks
        dtype = ir.DataType.FLOAT
    if array.size and has_form:
        expression = Form(dtype, device, is_loaded).of(array)
        if expression is not None:
            return expression
    if array.size > MAX_LISTED or (array.dtype.kind == "f" and bool(np.isnan(array).any())):
        return None
    if 0 in array.shape:
        return call("torch.empty", tuple(array.shape), dtype=dtype, device=device)
    return Form(dtype, device, is_loaded).numbers(array)


def follows_rule(array: NDArray[Any], dtype: ir.DataType) -> bool:
    """Return True if an expression makes these elements without listing them."""
    return not array.size or Form(dtype, OMIT, True).of(array) is not None


def text_literal(items: list[str], shape: tuple[int, ...]) -> ast.expr | None:
    """Return an expression that makes this array of strings, or None if it is large."""
    if 0 in shape:
        return quote("np.empty(s, dtype=object)", s=shape)
    if len(items) > MAX_INLINE_ELEMENTS or sum(map(len, items)) > MAX_INLINE_CHARACTERS:
        return None
    nested = np.array(items, dtype=object).reshape(shape).tolist()
    return quote("np.array(v, dtype=object)", v=nested)


def _nested(values: Any, dtype: ir.DataType) -> Any:
    if isinstance(values, list):
        return [_nested(v, dtype) for v in values]
    return shortest(values, dtype) if isinstance(values, float) else values


def _implied(array: NDArray[Any]) -> ir.DataType:
    """Return the dtype that torch gives to a tensor of these numbers if none is written."""
    return {"f": ir.DataType.FLOAT, "b": ir.DataType.BOOL}.get(array.dtype.kind, ir.DataType.INT64)


def _has_negative_zero(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" and bool((np.signbit(array) & (array == 0)).any())


class Form:
    """The forms of arrays of one type on one device. Methods return None if the array does not have the form."""

    def __init__(self, dtype: ir.DataType, device: Any, is_loaded: bool = False) -> None:
        self.dtype, self.device, self.is_loaded = dtype, device, is_loaded

    def of(self, array: NDArray[Any]) -> ast.expr | None:
        expression = self._uniform(array)
        if expression is not None or self.dtype in PLAIN_ONLY or array.size < 4 or _has_negative_zero(array):
            return expression
        core = array
        if array.size > MAX_INLINE_ELEMENTS:
            for axis in range(array.ndim):
                first = core[(ANY,) * axis + (slice(0, 1),)]
                core = first if bool((core == first).all()) else core
        squeezed = core.squeeze()
        expression = self.line(squeezed) if squeezed.ndim == 1 else self._table(squeezed)
        if expression is not None:
            return _in_shape(expression, core.shape, array.shape)
        if core.size < array.size and core.size <= MAX_LISTED and not np.isnan(squeezed.astype(float)).any():
            return _in_shape(self.numbers(squeezed), core.shape, array.shape)
        return None

    def line(self, array: NDArray[Any]) -> ast.expr | None:
        """Return an expression for a vector."""
        return self._arange(array) or spaced(array, self) or self._steps(array) or stretches(array, self)

    def _table(self, array: NDArray[Any]) -> ast.expr | None:
        expression = self._eye(array) or self._triangle(array) or self._relative(array) if array.ndim == 2 else None
        return expression or points(array, self) or rows(array, self) or combined(array, self)

    def of_type(self, dtype: ir.DataType) -> Form:
        """Return the forms of another type."""
        return Form(dtype, self.device, self.is_loaded)

    def number(self, value: Any) -> Any:
        """Return an element as a person writes it."""
        return _nested(value.item(), self.dtype)

    def numbers(self, array: NDArray[Any]) -> ast.expr:
        return self.call("torch.tensor", literal(_nested(array.tolist(), self.dtype)), implied=_implied(array))

    def call(self, function: str, *args: Any, implied: ir.DataType) -> ast.expr:
        return call(function, *args, dtype=OMIT if self.dtype == implied else self.dtype, device=self.device)

    def _uniform(self, array: NDArray[Any]) -> ast.expr | None:
        first = array.reshape(-1)[0]
        if array.size < 2 or not bool((array == first).all()) or _has_negative_zero(array):
            return None
        if self.dtype != ir.DataType.BOOL and first in (0, 1):
            return self.call(f"torch.{'ones' if first else 'zeros'}", *array.shape, implied=ir.DataType.FLOAT)
        value = _nested(first.item(), self.dtype)
        return self.call("torch.full", tuple(array.shape), value, implied=_implied(array))

    # ---- one axis

    def _arange(self, array: NDArray[Any]) -> ast.expr | None:
        """`torch.arange(start, stop, step)`, if every sum and product is exact."""
        if array.dtype.kind not in "iuf":
            return None
        numbers = array[0].item(), array[1].item()
        if not all(math.isfinite(n) and n == int(n) for n in numbers):
            return None
        start, step = int(numbers[0]), int(numbers[1]) - int(numbers[0])
        stop = start + step * array.size
        most = WHOLE.get(self.dtype, 1 << 62 if array.dtype.kind in "iu" else 0)
        if step == 0 or max(abs(start), abs(stop)) >= most:
            return None
        if not bool((array == np.arange(array.size) * step + start).all()):
            return None
        bounds = (stop,) if (start, step) == (0, 1) else (start, stop) if step == 1 else (start, stop, step)
        return self.call("torch.arange", *bounds, implied=ir.DataType.INT64)

    def _steps(self, array: NDArray[Any]) -> ast.expr | None:
        """`torch.arange(n) // k` and `torch.arange(n) % k`: rows and columns of a grid."""
        if self.dtype != ir.DataType.INT64 or array[0] != 0 or array.size <= MAX_INLINE_ELEMENTS:
            return None
        counts = np.arange(array.size)
        period = int(np.argmax(array != 0)) if array[1] == 0 else int(np.argmax(array != counts))
        if period < 2:
            return None
        counts_of_torch = self.call("torch.arange", array.size, implied=ir.DataType.INT64)
        if bool((array == counts // period).all()):
            return quote("x // k", x=counts_of_torch, k=period)
        return quote("x % k", x=counts_of_torch, k=period) if bool((array == counts % period).all()) else None

    # ---- two axes

    def _eye(self, matrix: NDArray[Any]) -> ast.expr | None:
        """`torch.eye(n)`, perhaps times a number."""
        rows, columns = matrix.shape
        scale = matrix[0, 0]
        is_scaled = self.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and np.isfinite(scale) and scale > 0
        if not (scale == 1 or is_scaled):
            return None
        if not bool((matrix == np.eye(rows, columns, dtype=matrix.dtype) * scale).all()):
            return None
        sides = (rows,) if rows == columns else (rows, columns)
        eye = self.call("torch.eye", *sides, implied=ir.DataType.FLOAT)
        return eye if scale == 1 else quote("x * s", x=eye, s=_nested(scale.item(), self.dtype))

    def _triangle(self, matrix: NDArray[Any]) -> ast.expr | None:
        """One number on one side of a diagonal, zeros on the other: `torch.ones(n, n).tril()`."""
        rows, columns = matrix.shape
        filled = matrix[-1, 0] if matrix[-1, 0] != 0 else matrix[0, -1]
        if filled == 0 or (matrix[-1, 0] != 0 and matrix[0, -1] != 0):
            return None
        name, cut = ("tril", np.tril) if matrix[-1, 0] != 0 else ("triu", np.triu)
        first = (matrix[0] != 0) if name == "tril" else (matrix[0] == 0)
        column = (matrix[:, 0] == 0) if name == "tril" else (matrix[:, 0] != 0)
        across, down = int(first.sum()), int(column.sum())  # where the diagonal leaves the first row and column
        diagonal = (across - 1 if across else -down) if name == "tril" else (across if across else 1 - down)
        if not bool((matrix == np.where(cut(np.ones(matrix.shape, bool), diagonal), filled, 0)).all()):
            return None
        if self.dtype == ir.DataType.BOOL or filled == 1:
            whole = self.call("torch.ones", rows, columns, implied=ir.DataType.FLOAT)
        else:
            value = _nested(filled.item(), self.dtype)
            whole = self.call("torch.full", (rows, columns), value, implied=_implied(matrix))
        return quote(f"x.{name}(d)" if diagonal else f"x.{name}()", x=whole, d=diagonal)

    def _relative(self, matrix: NDArray[Any]) -> ast.expr | None:
        """Swin's table of relative positions in a window of h by w (helper `relative_positions`)."""
        n = len(matrix)
        if self.dtype != ir.DataType.INT64 or matrix.shape != (n, n) or n < 4:
            return None
        away = np.flatnonzero(matrix[0] != matrix[0, 0] - np.arange(n))
        width = int(away[0]) if away.size else n
        if n % width:
            return None
        y, x = np.divmod(np.arange(n), width)
        rows = (y[:, None] - y + n // width - 1) * (2 * width - 1)
        if not bool((matrix == rows + x[:, None] - x + width - 1).all()):
            return None
        return call("relative_positions", n // width, width)


def _in_shape(expression: ast.expr, core: tuple[int, ...], shape: tuple[int, ...]) -> ast.expr:
    """Insert axes of size 1 to give an expression the shape `core`, and repeat it to `shape`."""
    repeats = [m // n for n, m in zip(core, shape)]
    is_repeated = any(r > 1 for r in repeats)
    leading = next((i for i, n in enumerate(core) if n > 1), len(core))
    kept = core[leading:] if is_repeated else core  # `repeat` makes leading axes by itself
    places: list[ast.expr] = [ast.Constant(None) if n == 1 else ast.Slice() for n in kept]
    while places and isinstance(places[-1], ast.Slice):
        places.pop()
    if places:
        index = places[0] if len(places) == 1 else ast.Tuple(places, ast.Load())
        expression = ast.Subscript(expression, index, ast.Load())
    return call(ast.Attribute(expression, "repeat", ast.Load()), *repeats) if is_repeated else expression


EXACT_INTEGERS = {ir.DataType.FLOAT: 1 << 24, ir.DataType.DOUBLE: 1 << 53}  # all integers up to this one are exact
MAX_SPACED = 1 << 20  # elements of a vector that are compared with many formulas
# the numbers that are multiplied, of a count x
COUNTS = (("x", 1, 0.0), ("x + 0.5", 1, 0.5), ("2 * x + 1", 2, 1.0), ("-x", -1, 0.0))


def linspace(start: float, end: float, count: int, fused: bool) -> NDArray[np.float32]:
    """Return the elements of torch.linspace on the CPU, `fused` if it rounds product and sum together.

    It counts from both ends: aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp.
    """
    first, last = np.float32(start), np.float32(end)
    step = np.float32(last - first) / np.float32(count - 1)
    at = np.arange(count)
    is_first = at < count // 2
    steps = np.where(is_first, at, count - 1 - at).astype(np.float32)
    base, signed = np.where(is_first, first, last), np.where(is_first, step, -step)
    if not fused:
        return np.asarray(base + signed * steps, np.float32)
    product = signed.astype(np.float64) * steps  # exact
    total = base + product
    back = total - product
    lost = (base - back) + (product - (total - back))  # what rounding the sum lost: it must not be rounded twice
    inexact = (lost != 0) & (total.view(np.int64) % 2 == 0)
    rounded: NDArray[np.float64] = np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total)
    return rounded.astype(np.float32)


def spaced(array: NDArray[Any], form: Form) -> ast.expr | None:
    """Return the shortest expression for evenly spaced floats, or None."""
    if form.dtype not in EXACT_INTEGERS or not 4 <= array.size <= MAX_SPACED or not np.isfinite(array).all():
        return None
    step = (float(array[-1]) - float(array[0])) / (array.size - 1)
    even = array[0] + np.arange(array.size) * step
    reach = float(np.abs(array[[0, -1]]).max())
    if step == 0 or float(np.abs(array - even).max()) > 8 * np.finfo(array.dtype).eps * reach:
        return None
    with np.errstate(all="ignore"):
        candidates = [*_multiples(array, step, form), *_linspace(array, form)]
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _linspace(array: NDArray[Any], form: Form) -> Iterator[tuple[int, ast.expr]]:
    if form.dtype != ir.DataType.FLOAT:
        return
    start, end = (shortest(float(x)) for x in array[[0, -1]])
    ways = [linspace(start, end, array.size, fused) for fused in (False, True)]
    same = [(way == array) & (np.signbit(way) == np.signbit(array)) for way in ways]
    if (same[0] & same[1]).all() or (form.is_loaded and (same[0] | same[1]).all()):
        expression = form.call(
            "torch.linspace", *map(form.number, array[[0, -1]]), array.size, implied=ir.DataType.FLOAT
        )
        yield _cost(start, end), expression


def _multiples(array: NDArray[Any], step: float, form: Form) -> Iterator[tuple[int, ast.expr]]:
    """Yield the counts times a number, or divided by a whole one, perhaps plus another number."""
    kind = array.dtype.type
    counts = form.call("torch.arange", array.size, implied=ir.DataType.FLOAT)  # times a float it is of that type
    for template, factor, first in COUNTS:
        numbers = (np.arange(array.size) * factor + first).astype(kind)
        one = step / factor
        ways = [(f"({template}) * s", numbers * kind(s), s) for s in _rounded(one, kind)]
        whole = round(1 / one) if abs(one) < 1 else 0
        if abs(whole) > 1 and abs(whole * one - 1) < 1e-5:
            ways.append((f"({template}) / s", numbers / kind(whole), whole))
        for way, values, s in ways:
            for c in _offsets(array, values, step):
                number = s if isinstance(s, int) else form.number(kind(s))
                text = way if c == 0 else f"{way} + c" if c > 0 else f"{way} - c"
                expression = quote(text, x=counts, s=number, c=form.number(kind(abs(c))))
                usual = 4 if s == array.size and isinstance(s, int) else 0  # the centres of as many pixels
                yield _cost(s, *([c, 0.0] if c else []), first) - usual, expression


def _offsets(array: NDArray[Any], values: NDArray[Any], step: float) -> list[float]:
    """Return the numbers that make values an array bit for bit when they are added."""
    kind, offset = array.dtype.type, float(array[0]) - float(values[0])
    candidates = {0.0, *_rounded(offset, kind)} if abs(offset) > abs(step) / 1000 else {0.0}
    return [c for c in candidates if same_bits(values + kind(c) if c else values, array)]


def same_bits(computed: NDArray[Any], array: NDArray[Any]) -> bool:
    """True if all elements are equal, and no zero has the other sign."""
    return bool((computed == array).all() and (np.signbit(computed) == np.signbit(array)).all())


def _rounded(number: float, kind: Any) -> set[float]:
    """Return a number in a type, and with fewer digits where that is nearly the same."""
    near = {float(kind(f"{number:.{digits}g}")) for digits in range(1, 8)}
    return {float(kind(number)), *(n for n in near if abs(n - number) < 1e-5 * abs(number))}


def _cost(*numbers: float) -> int:
    return sum(len(repr(shortest(float(np.float32(n))))) for n in numbers)


Array = NDArray[Any]
TABLE_TYPES = (ir.DataType.FLOAT, ir.DataType.INT64)
MAX_GRIDS = 8  # one after the other, as of a detector's scales
MAX_STRETCHES = 8  # of equal numbers
MAX_VECTOR = 32  # numbers of a vector that has no form of its own
FEW = 32  # a table of at most this many numbers is written out


def listed(array: Array, form: Form) -> ast.expr | None:
    """Return a vector by its form, or as a short list."""
    line = form.line(array) if array.size >= 4 else None
    return line if line is not None or array.size > MAX_VECTOR else form.numbers(array)


# ---- points of grids


def points(array: Array, form: Form) -> ast.expr | None:
    """`torch.cartesian_prod(torch.arange(h), torch.arange(w))`: x and y of grid points, as rows, columns or planes."""
    if form.dtype not in TABLE_TYPES or array.ndim not in (2, 3) or array.size < 8:
        return None
    for axis in (-1, 0):
        if array.shape[axis] == 2:
            expression = _pairs(np.moveaxis(array, axis, -1), axis == 0, form)
            if expression is not None:
                return expression
    return None


def _pairs(array: Array, is_first: bool, form: Form) -> ast.expr | None:
    """Return grids of the shape [h, w, 2] or [n, 2]; `is_first`: the axis of x and y comes first."""
    flat = array.reshape(-1, 2)
    flips = bool(flat[0, 0] != flat[1, 0])
    slow, fast = (flat[:, 1], flat[:, 0]) if flips else (flat[:, 0], flat[:, 1])
    axes = grids(slow, fast)
    if axes is None or (array.ndim == 3 and (len(axes) > 1 or len(axes[0][0]) != len(array))):
        return None
    parts = [_grid(u, v, flips, form) for u, v in axes]
    if None in parts:
        return None
    whole = parts[0] if len(parts) == 1 else quote("torch.cat(x)", x=parts)
    whole = quote("x.T", x=whole) if is_first else whole
    if array.ndim == 3:
        shape = (2, *array.shape[:2]) if is_first else array.shape
        whole = quote("x.reshape(a, b, c)", x=whole, **dict(zip("abc", shape)))
    return whole


def grids(slow: Array, fast: Array) -> list[tuple[Array, Array]] | None:
    """Return the axes of each of the grids whose flattened points these columns are, exactly; None if they are not."""
    axes: list[tuple[Array, Array]] = []
    at = 0
    while at < slow.size:
        rest, across = slow[at:], fast[at:]
        differs = rest != rest[0]
        width = int(np.argmax(differs)) if differs.any() else rest.size
        if width < 2 or len(axes) == MAX_GRIDS:
            return None
        rows = rest.size // width
        down = rest[: rows * width].reshape(rows, width)
        alike = (down == down[:, :1]).all(1) & (across[: rows * width].reshape(rows, width) == across[:width]).all(1)
        if rows > 1:
            steps = np.sign(np.diff(down[:, 0].astype(np.float64)))
            alike[1:] &= (steps == steps[0]) & (steps != 0)
        height = rows if alike.all() else int(np.argmin(alike))
        axes.append((down[:height, 0], across[:width]))
        at += height * width
    return axes if any(len(u) > 1 for u, _ in axes) else None


def _grid(u: Array, v: Array, flips: bool, form: Form) -> ast.expr | None:
    flip = ".flip(-1)" if flips else ""
    if form.dtype == ir.DataType.FLOAT:
        if flips and not form.is_loaded and (scaling := _scale(u, v)) is not None:
            return _centres(u, v, scaling, form)
        sides = [form.call("torch.arange", len(side), implied=ir.DataType.FLOAT) for side in (u, v)]
        grid = quote(f"torch.cartesian_prod(a, b){flip}", a=sides[0], b=sides[1])
        scaled = _scaled(u, v, grid, form)
        if scaled is not None:
            return scaled
    a, b = listed(u, form), listed(v, form)
    return None if a is None or b is None else quote(f"torch.cartesian_prod(a, b){flip}", a=a, b=b)


def _centres(u: Array, v: Array, scaling: tuple[float, bool, Any], form: Form) -> ast.expr:
    """`make_grid(h, w, stride)`, a helper."""
    offset, divides, scale = scaling
    number = form.number(scale) if scale != int(scale) else int(scale)
    stride = OMIT if divides or scale == 1 else number
    grid = call("make_grid", len(u), len(v), stride, offset=unless(int(offset) if offset != 0.5 else offset, 0.5))
    return quote("x / s", x=grid, s=number) if divides else grid


def _scaled(u: Array, v: Array, grid: ast.expr, form: Form) -> ast.expr | None:
    """Return whole numbers, perhaps shifted, then multiplied or divided, if both axes have the same step."""
    scaling = _scale(u, v)
    if scaling is None:
        return None
    offset, divides, scale = scaling
    base = quote("x + o", x=grid, o=offset) if offset else grid
    if scale == 1:
        return base if offset else quote("x.float()", x=base)
    number = int(scale) if scale == int(scale) and offset else form.number(scale)
    return quote("x / s" if divides else "x * s", x=base, s=number)


def _scale(u: Array, v: Array) -> tuple[float, bool, Any] | None:
    """Return what both axes are made of: the offset of the first number, and the number that multiplies or divides."""
    step = np.float32(v[1] - v[0])
    if not np.isfinite(step) or step == 0:
        return None
    for offset in (0.0, 0.5, 1.0):
        counts = [(np.arange(len(side)) + offset).astype(np.float32) for side in (u, v)]
        whole = np.float32(round(1 / float(step))) if abs(step) < 1 else np.float32(0)
        scales = {step, np.float32(float(v[-1]) / float(counts[1][-1])), np.float32(f"{float(step):.4g}")}
        ways = [(False, k) for k in sorted(scales)] + ([(True, whole)] if abs(whole) > 1 else [])
        for divides, scale in ways:
            got = [c / scale if divides else c * scale for c in counts]
            if np.array_equal(got[0], u) and np.array_equal(got[1], v):
                return offset, divides, scale
    return None


# ---- other tables


def rows(array: Array, form: Form) -> ast.expr | None:
    """`torch.eye(n) * s` and `torch.eye(n)[places]`: one number in each row."""
    if form.dtype not in TABLE_TYPES or array.ndim != 2 or min(array.shape) < 2 or array.size < 4:
        return None
    count, width = array.shape
    scale = array.max() if array.max() > 0 else array.min()
    filled = array != 0
    if not bool((filled.sum(1) == 1).all()) or not bool((array[filled] == scale).all()):
        return None
    eye = form.call("torch.eye", width, implied=ir.DataType.FLOAT)
    if not np.array_equal(filled.argmax(1), np.arange(count)) or count != width:
        places = listed(filled.argmax(1).astype(np.int64), form.of_type(ir.DataType.INT64))
        if array.size <= FEW or places is None:
            return None
        eye = quote("x[i]", x=eye, i=places)
    return eye if scale == 1 else quote("x * s", x=eye, s=form.number(scale))


def combined(array: Array, form: Form) -> ast.expr | None:
    """`torch.arange(h)[:, None] - torch.arange(w)`: vectors along the axes, added, or multiplied if there are two."""
    if form.dtype not in TABLE_TYPES or array.size <= FEW or not 2 <= array.ndim <= 4 or not np.isfinite(array).all():
        return None
    lines = _summands(array) if form.dtype != ir.DataType.FLOAT or _is_exact(array) else None
    if lines is None:
        return _product(array, form) if array.ndim == 2 else None
    whole: ast.expr | None = None
    for axis, line in enumerate(lines):
        falls = bool(axis and line[-1] < line[0])
        term = listed(-line if falls else line, form)
        if term is None:
            return None
        term = _upright(term, array.ndim - 1 - axis)
        whole = term if whole is None else quote("x - y" if falls else "x + y", x=whole, y=term)
    return whole


def _summands(array: Array) -> list[Array] | None:
    """Return the vectors along the axes whose sum an array is, or None."""
    lines = [np.moveaxis(array, axis, -1).reshape(-1, n)[0] for axis, n in enumerate(array.shape)]
    lines = [line - line[0] if axis else line for axis, line in enumerate(lines)]
    shaped = [line.reshape((-1,) + (1,) * (array.ndim - 1 - axis)) for axis, line in enumerate(lines)]
    return lines if np.array_equal(reduce(np.add, shaped), array) else None


def _is_exact(array: Array) -> bool:
    """Return True for whole numbers whose sums are exact in float32."""
    return bool((array == np.rint(array)).all() and np.abs(array).max() < 1 << 22)


def _product(array: Array, form: Form) -> ast.expr | None:
    """`torch.tensor(slopes)[:, None] * torch.arange(n)`, each product rounded once."""
    if form.dtype != ir.DataType.FLOAT:
        return None
    for counts in (np.arange(array.shape[1]), np.arange(1, array.shape[1] + 1), np.arange(1 - array.shape[1], 1)):
        at = int(np.flatnonzero(np.abs(counts) == 1)[0]) if array.shape[1] > 1 else 0
        slopes = array[:, at] / np.float32(counts[at])
        if array.shape[1] > 1 and np.array_equal(slopes[:, None] * counts.astype(np.float32), array):
            column, across = listed(slopes, form), form.of_type(ir.DataType.INT64).line(counts)
            return None if column is None or across is None else quote("x[:, None] * y", x=column, y=across)
    return None


def _upright(vector: ast.expr, axes: int) -> ast.expr:
    """Append axes of size 1 to a vector."""
    index = ast.Tuple([ast.Slice(), *[ast.Constant(None)] * axes], ast.Load())
    return ast.Subscript(vector, index, ast.Load()) if axes else vector


def stretches(array: Array, form: Form) -> ast.expr | None:
    """`torch.tensor([8.0, 16.0]).repeat_interleave(torch.tensor([6400, 1600]))`: few numbers, each many times."""
    if form.dtype not in TABLE_TYPES or array.size <= FEW or not np.isfinite(array).all():
        return None
    starts = np.flatnonzero(np.diff(array, prepend=array[0] - 1 if array[0] else -1))
    if not 2 <= len(starts) <= MAX_STRETCHES or len(set(array[starts].tolist())) < len(starts):
        return None
    counts = np.diff(starts, append=array.size)
    times: Any = int(counts[0])
    if bool((counts != counts[0]).any()):
        times = form.of_type(ir.DataType.INT64).numbers(counts)
    return quote("x.repeat_interleave(n)", x=form.numbers(array[starts]), n=times)
