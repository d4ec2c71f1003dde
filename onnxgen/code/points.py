"""Writes tables as expressions: the points of a grid, rows with one number each, sums and products of vectors."""

from __future__ import annotations

import ast
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import OMIT, call, quote, unless

if TYPE_CHECKING:
    from onnxgen.code.literals import Form

Array = NDArray[Any]
TYPES = (ir.DataType.FLOAT, ir.DataType.INT64)
MAX_GRIDS = 8  # one after the other, as of a detector's scales
MAX_STRETCHES = 8  # of equal numbers
MAX_LISTED = 32  # numbers of a vector that has no form of its own
FEW = 32  # a table of at most this many numbers is written out


def listed(array: Array, form: Form) -> ast.expr | None:
    """Return a vector by its form, or as a short list."""
    made = form.line(array) if array.size >= 4 else None
    return made if made is not None or array.size > MAX_LISTED else form.numbers(array)


# ---- points of grids


def points(array: Array, form: Form) -> ast.expr | None:
    """`torch.cartesian_prod(torch.arange(h), torch.arange(w))`: x and y of grid points, as rows, columns or planes."""
    if form.dtype not in TYPES or array.ndim not in (2, 3) or array.size < 8:
        return None
    for axis in (-1, 0):
        if array.shape[axis] == 2:
            made = _pairs(np.moveaxis(array, axis, -1), axis == 0, form)
            if made is not None:
                return made
    return None


def _pairs(array: Array, is_first: bool, form: Form) -> ast.expr | None:
    """Return grids of the shape [h, w, 2] or [n, 2]; `is_first`: the axis of x and y comes first."""
    flat = array.reshape(-1, 2)
    flips = bool(flat[0, 0] != flat[1, 0])
    slow, fast = (flat[:, 1], flat[:, 0]) if flips else (flat[:, 0], flat[:, 1])
    axes = grids(slow, fast)
    if axes is None or (array.ndim == 3 and (len(axes) > 1 or len(axes[0][0]) != len(array))):
        return None
    made = [_grid(u, v, flips, form) for u, v in axes]
    if None in made:
        return None
    whole = made[0] if len(made) == 1 else quote("torch.cat(x)", x=made)
    whole = quote("x.T", x=whole) if is_first else whole
    if array.ndim == 3:
        shape = (2, *array.shape[:2]) if is_first else array.shape
        whole = quote("x.reshape(a, b, c)", x=whole, **dict(zip("abc", shape)))
    return whole


def grids(slow: Array, fast: Array) -> list[tuple[Array, Array]] | None:
    """Return the axes of each of the grids whose flattened points these columns are, exactly; None if they are not."""
    found: list[tuple[Array, Array]] = []
    at = 0
    while at < slow.size:
        rest, across = slow[at:], fast[at:]
        differs = rest != rest[0]
        width = int(np.argmax(differs)) if differs.any() else rest.size
        if width < 2 or len(found) == MAX_GRIDS:
            return None
        rows = rest.size // width
        down = rest[: rows * width].reshape(rows, width)
        alike = (down == down[:, :1]).all(1) & (across[: rows * width].reshape(rows, width) == across[:width]).all(1)
        if rows > 1:
            steps = np.sign(np.diff(down[:, 0].astype(np.float64)))
            alike[1:] &= (steps == steps[0]) & (steps != 0)
        height = rows if alike.all() else int(np.argmin(alike))
        found.append((down[:height, 0], across[:width]))
        at += height * width
    return found if any(len(u) > 1 for u, _ in found) else None


def _grid(u: Array, v: Array, flips: bool, form: Form) -> ast.expr | None:
    flip = ".flip(-1)" if flips else ""
    if form.dtype == ir.DataType.FLOAT and flips and not form.is_loaded and (found := _scale(u, v)) is not None:
        offset, divides, scale = found
        number = form.number(scale) if scale != int(scale) else int(scale)
        stride = OMIT if divides or scale == 1 else number
        made = call("make_grid", len(u), len(v), stride, offset=unless(int(offset) if offset != 0.5 else offset, 0.5))
        return quote("x / s", x=made, s=number) if divides else made
    if form.dtype == ir.DataType.FLOAT:
        sides = [form.call("torch.arange", len(side), implied=ir.DataType.FLOAT) for side in (u, v)]
        made = quote(f"torch.cartesian_prod(a, b){flip}", a=sides[0], b=sides[1])
        scaled = _scaled(u, v, made, form)
        if scaled is not None:
            return scaled
    a, b = listed(u, form), listed(v, form)
    return None if a is None or b is None else quote(f"torch.cartesian_prod(a, b){flip}", a=a, b=b)


def _scaled(u: Array, v: Array, made: ast.expr, form: Form) -> ast.expr | None:
    """Return whole numbers, perhaps shifted, then multiplied or divided, if both axes have the same step."""
    found = _scale(u, v)
    if found is None:
        return None
    offset, divides, scale = found
    base = quote("x + o", x=made, o=offset) if offset else made
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
    if form.dtype not in TYPES or array.ndim != 2 or min(array.shape) < 2 or array.size < 4:
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
    if form.dtype not in TYPES or array.size <= FEW or not 2 <= array.ndim <= 4 or not np.isfinite(array).all():
        return None
    if form.dtype == ir.DataType.FLOAT and not bool((array == np.rint(array)).all() and np.abs(array).max() < 1 << 22):
        return _product(array, form) if array.ndim == 2 else None
    lines = [np.moveaxis(array, axis, -1).reshape(-1, n)[0] for axis, n in enumerate(array.shape)]
    lines = [line - line[0] if axis else line for axis, line in enumerate(lines)]
    shaped = [line.reshape((-1,) + (1,) * (array.ndim - 1 - axis)) for axis, line in enumerate(lines)]
    if not np.array_equal(reduce(np.add, shaped), array):
        return _product(array, form) if array.ndim == 2 else None
    falls = [bool(line.size > 1 and line[-1] < line[0] and axis) for axis, line in enumerate(lines)]
    whole: ast.expr | None = None
    for axis, line in enumerate(lines):
        made = listed(-line if falls[axis] else line, form)
        if made is None:
            return None
        made = _upright(made, array.ndim - 1 - axis)
        whole = made if whole is None else quote("x - y" if falls[axis] else "x + y", x=whole, y=made)
    return whole


def _product(array: Array, form: Form) -> ast.expr | None:
    """`torch.tensor(slopes)[:, None] * torch.arange(n)`, each product rounded once."""
    if form.dtype != ir.DataType.FLOAT:
        return None
    for counts in (np.arange(array.shape[1]), np.arange(1, array.shape[1] + 1), np.arange(1 - array.shape[1], 1)):
        at = int(np.flatnonzero(np.abs(counts) == 1)[0]) if array.shape[1] > 1 else 0
        slopes = array[:, at] / np.float32(counts[at])
        if array.shape[1] > 1 and np.array_equal(slopes[:, None] * counts.astype(np.float32), array):
            made, across = listed(slopes, form), form.of_type(ir.DataType.INT64).line(counts)
            return None if made is None or across is None else quote("x[:, None] * y", x=made, y=across)
    return None


def _upright(made: ast.expr, axes: int) -> ast.expr:
    """Append axes of size 1 to a vector."""
    index = ast.Tuple([ast.Slice(), *[ast.Constant(None)] * axes], ast.Load())
    return ast.Subscript(made, index, ast.Load()) if axes else made


def stretches(array: Array, form: Form) -> ast.expr | None:
    """`torch.tensor([8.0, 16.0]).repeat_interleave(torch.tensor([6400, 1600]))`: few numbers, each many times."""
    if form.dtype not in TYPES or array.size <= FEW or not np.isfinite(array).all():
        return None
    starts = np.flatnonzero(np.diff(array, prepend=array[0] - 1 if array[0] else -1))
    if not 2 <= len(starts) <= MAX_STRETCHES or len(set(array[starts].tolist())) < len(starts):
        return None
    counts = np.diff(starts, append=array.size)
    times: Any = int(counts[0])
    if bool((counts != counts[0]).any()):
        times = form.of_type(ir.DataType.INT64).numbers(counts)
    return quote("x.repeat_interleave(n)", x=form.numbers(array[starts]), n=times)
