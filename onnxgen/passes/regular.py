"""Recognise tensors whose elements follow a rule, so that nobody trained them: masks, grids, frequencies, sinusoids.

The rules allow for rounding, since exporters compute such tensors in float32. A tensor of unrelated numbers fulfils
none of them by chance: each rule compares many more numbers than it has unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.literals import grids
from onnxgen.weights.stored import is_uniform, leading

SAMPLED_ELEMENTS = 4096  # the first elements show if a tensor can have a rule at all
MAX_ELEMENTS = 1 << 24  # of a table that is examined as a whole
MIN_ROUNDED = 8  # elements of a vector whose steps are equal but for rounding
TOLERANCE = 1e-3  # of a sine of a large angle, which float32 rounds by so much
LEAST_BINS = 8  # rows that are needed to tell a Fourier transform
EPSILON = 1e-9
MIRRORED = 2e-6  # of the greatest tap of a kernel: how far its mirror image may be, which was rounded, too
PRECISE = {ir.DataType.FLOAT, ir.DataType.DOUBLE}


@dataclass(frozen=True)
class Rule:
    """What the elements of a tensor follow.

    Attributes:
        name: a name for the tensor in the source, "" if the rule does not tell its use.
        reason: why it is not trained.
    """

    name: str
    reason: str


MASK = Rule("mask", "a mask (only 0, 1 and one number of at most -100, such as -inf)")
EVEN = Rule("", "evenly spaced numbers")
GEOMETRIC = Rule("inv_freq", "a geometric progression (the frequencies of a positional encoding)")
GRID = Rule("grid", "a grid of evenly spaced points")
SINUSOIDS = Rule("positions", "sines and cosines of evenly spaced angles (a positional encoding)")
ONE_HOT = Rule("", "a diagonal, or rows with one number each")
STRIDES = Rule("strides", "powers of two, each several times (the strides of feature maps)")
TRIANGLE = Rule("mask", "one number on one side of a diagonal, zeros on the other")


def rule_of(tensor: ir.TensorProtocol) -> Rule | None:
    """Return the rule that the elements of a tensor of rank >= 1 follow; None if it may be a weight."""
    if tensor.size < 2:
        return None
    some = leading(tensor, SAMPLED_ELEMENTS)
    distinct = np.unique(some).size
    if distinct <= 4 and _is_mask(tensor.numpy().reshape(-1)):
        return MASK
    if max(tensor.shape.numpy()) == tensor.size:
        return _of_vector(tensor) if tensor.size >= 3 else None
    if tensor.dtype not in PRECISE or not 4 < tensor.size <= MAX_ELEMENTS or not np.isfinite(some).all():
        return None
    rules = TABLES if distinct <= some.size // 2 else {}  # coordinates repeat
    if _may_be_sinusoid(tensor):
        rules = {**rules, SINUSOIDS: _is_sinusoid}
    table = np.squeeze(tensor.numpy()) if rules else np.empty(0)
    return next((rule for rule, holds in rules.items() if holds(table)), None)


def _of_vector(tensor: ir.TensorProtocol) -> Rule | None:
    flat = tensor.numpy().reshape(-1)
    steps = np.diff(flat.astype(np.float64))
    # a short vector with rounded steps may be a norm's weight that somebody typed: 0.1, 0.2, 0.3, 0.4
    if steps[0] != 0 and ((steps == steps[0]).all() or (flat.size >= MIN_ROUNDED and _is_even(flat))):
        return EVEN
    if tensor.dtype in PRECISE and _is_geometric(flat):
        return GEOMETRIC
    return STRIDES if _are_strides(flat) else None


def name_of(array: NDArray[Any]) -> str:
    """Return a name for a constant, if its elements tell what it is; else ""."""
    if array.dtype.kind not in "bf" or array.size < 8 or bool((array == array.flat[0]).all()):
        return ""
    rule = rule_of(ir.tensor(array.astype(np.float32) if array.dtype.kind == "b" else array))
    flat, table = array.reshape(-1), np.squeeze(array)
    if rule is GEOMETRIC:  # 1, 1 / base ** (2 / d), ...
        return rule.name if flat[0] == 1 and flat[1] < 1 else ""
    if rule is MASK and not flat.min() <= -100:
        return rule.name if _is_triangle(table) else ""
    return rule.name if rule is not None else ""


def is_fresh(tensor: ir.TensorProtocol) -> bool:
    """True for a vector of ones or zeros, as in a new layer. It is not a mask if a file stores constants separately."""
    return is_uniform(tensor) and tensor.numpy().flat[0] in (0, 1)


def _is_mask(flat: NDArray[Any]) -> bool:
    low = flat.min() if bool((flat == 0).any()) else np.finfo(np.float16).min  # Swin's is -100, BERT's was -10000
    lowest = np.finfo(np.float32).min
    return bool(((flat == 0) | (flat == 1) | (flat <= lowest) | ((flat == low) & (flat <= -100))).all())


def _is_even(flat: NDArray[Any]) -> bool:
    """True for numbers at equal distances, each rounded to their type: `torch.linspace`.

    So few bits may differ that numbers without a rule pass once in 2 ** 30 vectors.
    """
    bits = -int(np.log2(_eps(flat)))
    if (flat.size - 2) * (bits - 3) < 30:
        return False
    wide = flat.astype(np.float64)
    if not np.isfinite(wide[[0, -1]]).all() or wide[0] == wide[-1]:
        return False
    even = np.linspace(wide[0], wide[-1], flat.size)
    return bool((np.abs(wide - even) <= 2 * _eps(flat) * np.abs(wide[[0, -1]]).max()).all())


def _eps(array: NDArray[Any]) -> float:
    """Return the distance from 1 to the next number of a type."""
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 2.0**-7  # bfloat16's


def _is_geometric(flat: NDArray[Any]) -> bool:
    """True for positive numbers with one constant ratio other than 1, to the precision of their type."""
    if not bool((flat > 0).all()):
        return False
    ratios = flat[1:].astype(np.float64) / flat[:-1]
    return bool(ratios[0] != 1 and (np.abs(ratios / ratios[0] - 1) < 32 * np.finfo(flat.dtype).eps).all())


def _are_strides(flat: NDArray[Any]) -> bool:
    """True for powers of two, each many times: the strides of a detector's feature maps."""
    if flat.size < 16 or flat[0] < 2 or not bool((flat[1:] >= flat[:-1]).all()):
        return False
    numbers = np.unique(flat)
    return 2 <= numbers.size <= 8 and bool((np.frexp(numbers)[0] == 0.5).all())


def _is_grid(table: NDArray[Any]) -> bool:
    """True if each coordinate of the points is evenly spaced along one axis and repeated along the others.

    The points are the rows or the columns, with two or three coordinates. An axis of one coordinate alone counts too:
    `torch.arange(n).repeat(m, 1)`.
    """
    if _is_ramp(table):
        return True
    for axis in (-1, 0):
        points = np.moveaxis(table, axis, 0)
        if 2 <= len(points) <= 3 and points[0].size >= 4:
            moving = [c for c in points if bool((c != c.flat[0]).any())]
            if len(moving) == 2 and (all(map(_is_ramp, moving)) if points[0].ndim > 1 else _are_levels(*moving)):
                return True
    return False


def _is_ramp(table: NDArray[Any]) -> bool:
    """True if a table of rank >= 2 changes along one axis only, by equal steps."""
    if table.ndim < 2:
        return False
    for axis in range(table.ndim):
        line = np.moveaxis(table, axis, -1).reshape(-1, table.shape[axis])
        if line.shape[1] >= 3 and bool((line == line[:1]).all()):
            return _is_spaced(line[0])
    return False


def _is_spaced(line: NDArray[Any]) -> bool:
    """True for one or two numbers, or an even progression of more; three count only in a table that repeats them."""
    steps = np.diff(line.astype(np.float64))
    return line.size < 3 or bool(steps[0] != 0 and (steps == steps[0]).all()) or _is_even(line)


def _are_levels(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """True if two columns are the coordinates of flattened grids, one after the other."""
    slow, fast = (first, second) if first[0] == first[1] else (second, first)
    axes = grids(slow, fast)
    return axes is not None and all(_is_spaced(side) for pair in axes for side in pair)


def _is_one_hot(table: NDArray[Any]) -> bool:
    """True if all rows, or all columns, have one element other than zero, and it is the same number."""
    if table.ndim != 2 or min(table.shape) < 2 or np.unique(table).size != 2:
        return False
    counts = table != 0
    return bool((counts.sum(0) == 1).all() or (counts.sum(1) == 1).all())


def _is_triangle(table: NDArray[Any]) -> bool:
    if table.ndim != 2 or min(table.shape) < 3 or np.unique(table).size != 2:
        return False
    away = np.subtract.outer(np.arange(table.shape[0]), np.arange(table.shape[1]))
    filled = away[table != 0]
    empty = away[table == 0]
    return bool(empty.size and filled.size and (filled.min() > empty.max() or filled.max() < empty.min()))


def _may_be_sinusoid(tensor: ir.TensorProtocol) -> bool:
    """Look at the first rows of a table, of which the very first may be that of a class token."""
    columns = next((int(n) for n in reversed(tensor.shape.numpy()) if n != 1), 1)
    rows = leading(tensor, 6 * columns).astype(np.float64)
    return rows.size == 6 * columns and _is_sine(rows.reshape(6, columns)[1:])


def _is_sinusoid(table: NDArray[Any]) -> bool:
    """True if the rows are sines and cosines of angles that grow by equal steps, in any order and of any base.

    The positions may be those of a square grid, and a first row of zeros may belong to a class token.
    """
    rows = table.reshape(-1, table.shape[-1])
    rows = rows if rows[0].any() else rows[1:]
    if _is_sine(rows):
        return True
    side = round(len(rows) ** 0.5)
    square = rows.reshape(side, side, -1) if side**2 == len(rows) else None
    return square is not None and _is_sine(square) and _is_sine(square.transpose(1, 0, 2))


def _is_sine(rows: NDArray[Any]) -> bool:
    """True if x[p + 1] + x[p - 1] = 2 cos(step) x[p] for the rows p of each column, and several columns move."""
    if len(rows) < 5 or not np.isfinite(rows).all() or not 0.5 < float(np.abs(rows).max()) < 1 + TOLERANCE:
        return False
    wide = rows.astype(np.float64)
    middle, ends = wide[1:-1], wide[2:] + wide[:-2]
    squares = (middle * middle).sum(0)
    factor = (middle * ends).sum(0) / np.where(squares > 0, squares, 1)
    off = np.abs(ends - factor * middle)
    moves = np.abs(np.diff(wide, axis=0)).max(0) > 0.1
    return bool(off.max() < TOLERANCE and np.abs(factor).max() < 2 + TOLERANCE and moves.sum() >= 2)


TABLES: dict[Rule, Callable[[NDArray[Any]], bool]] = {GRID: _is_grid, ONE_HOT: _is_one_hot, TRIANGLE: _is_triangle}


def is_expectation(tensor: ir.TensorProtocol) -> bool:
    """True for a kernel of the numbers 0, 1, 2, ...: it computes the mean of a distribution over bins (DFL)."""
    if tensor.size < 4 or max(tensor.shape.numpy()) != tensor.size:
        return False
    return bool((tensor.numpy().reshape(-1) == np.arange(tensor.size)).all())


def is_spectrum(tensor: ir.TensorProtocol) -> bool:
    """True for kernels that are the cosines or the sines of a discrete Fourier transform, under one window, or both.

    Row k is w(n) cos(2 pi k n / N); the window is what fits all rows best. There are far more elements than windows
    have. Training leaves no such kernels, though some begin so.
    """
    shape = tensor.shape.numpy()
    if tensor.dtype not in PRECISE or len(shape) < 2 or not LEAST_BINS <= shape[0] <= tensor.size // LEAST_BINS:
        return False
    first = leading(tensor, tensor.size // shape[0] * LEAST_BINS)
    if tensor.size > MAX_ELEMENTS or not _is_transform(first, LEAST_BINS):
        return False  # the first rows show it, of a large weight too
    bins = shape[0] // 2 if shape[0] % 2 == 0 else shape[0]
    whole = tensor.numpy()
    return any(all(_is_transform(part, n) for part in np.split(whole, shape[0] // n)) for n in {shape[0], bins})


def _is_transform(elements: NDArray[Any], bins: int) -> bool:
    """True for the first bins of a transform: its cosines or its sines."""
    rows = elements.reshape(bins, -1).astype(np.float64)
    greatest = float(np.abs(rows).max())
    if not np.isfinite(greatest) or greatest == 0 or rows.shape[1] < LEAST_BINS:
        return False
    angles = 2 * np.pi * np.outer(np.arange(bins), np.arange(rows.shape[1])) / rows.shape[1]
    for basis in (np.cos(angles), np.sin(angles)):
        squares = (basis * basis).sum(0)
        window = (rows * basis).sum(0) / np.where(squares > EPSILON, squares, 1)
        if np.abs(rows - window * basis).max() <= TOLERANCE * greatest:
            return True
    return False


def is_filter(tensor: ir.TensorProtocol) -> bool:
    """True for kernels of which each is its own mirror image, or the negative of that.

    So are windows, sincs, blurs and edges, and the cosines and sines of a windowed Fourier transform, whose first
    column has no partner. Training leaves no such kernel.
    """
    if tensor.dtype not in PRECISE or len(tensor.shape) < 3 or not 3 <= tensor.size <= MAX_ELEMENTS:
        return False
    spatial = int(np.prod(tensor.shape.numpy()[2:]))
    if spatial < 3 or is_uniform(tensor):
        return False
    rows = tensor.numpy().reshape(-1, spatial).astype(np.float64)
    if not np.isfinite(rows).all() or bool((rows == rows[:, :1]).all()):
        return False
    return _is_mirrored(rows) or (spatial > 3 and _is_mirrored(rows[:, 1:]))


def _is_mirrored(rows: NDArray[Any]) -> bool:
    near = MIRRORED * np.abs(rows).max(1, keepdims=True)
    even, odd = ((np.abs(rows - sign * rows[:, ::-1]) <= near).all(1) for sign in (1, -1))
    return bool((even | odd).all())
