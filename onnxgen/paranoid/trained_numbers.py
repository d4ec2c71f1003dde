"""What the elements of a stored tensor say of it, for the second decision of what is trained."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.weights.stored import peaks_in_order

PRECISE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
MAX_EXAMINED_ELEMENTS = 4096  # elements of a tensor; only this many are examined


def is_written(tensor: ir.TensorProtocol) -> bool:
    """Return True for a number of five digits at most, or a small whole one."""
    number = np.float32(_numbers(tensor)[0])
    return bool(number == np.float32(f"{number:.5g}"))


def is_row(tensor: ir.TensorProtocol) -> bool:
    shape = tensor.shape.numpy()
    return 1 < math.prod(shape) == max(shape)


def elements(tensor: ir.TensorProtocol) -> set[float]:
    return set(np.unique(_numbers(tensor)).tolist())


def _numbers(tensor: ir.TensorProtocol) -> NDArray[np.float64]:
    return tensor.numpy().reshape(-1).astype(np.float64)


def follows(tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor is a mask, evenly spaced, or powers of one number: such tensors are not learned."""
    if tensor.size < 2:
        return False
    numbers = _numbers(tensor)
    if np.unique(numbers[:MAX_EXAMINED_ELEMENTS]).size <= 4 and _masks(numbers):
        return True
    if tensor.size < 3 or not is_row(tensor):
        return _is_table(tensor)
    steps = numbers[1:] - numbers[:-1]
    if steps[0] and bool((steps == steps[0]).all()):
        return True
    if tensor.dtype not in PRECISE or not bool((numbers > 0).all()):
        return False
    factors = numbers[1:] / numbers[:-1] * (numbers[0] / numbers[1])
    near = 32 * np.finfo(tensor.dtype.numpy()).eps
    return numbers[0] != numbers[1] and bool((factors < 1 + near).all() and (factors > 1 - near).all())


def _is_table(tensor: ir.TensorProtocol) -> bool:
    """Return True for an even row or column that is repeated, and for rows with one number each, which is the same."""
    table = _numbers(tensor).reshape([n for n in tensor.shape.numpy() if n != 1])
    if table.ndim != 2 or not 4 < table.size <= MAX_EXAMINED_ELEMENTS or tensor.dtype not in PRECISE:
        return False
    if not np.isfinite(table).all() or np.unique(table).size > table.size // 2:
        return False
    if np.unique(table).size == 2 and np.count_nonzero(table) == max(table.shape):
        return any(bool(((table != 0).sum(axis) == 1).all()) for axis in (0, 1))
    lines = [rows[0] for rows in (table, table.T) if (rows == rows[0]).all() and len(rows[0]) >= 3]
    return any(bool(line[0] != line[1] and (np.diff(line) == line[1] - line[0]).all()) for line in lines)


def may_follow(tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor may be a rounded progression, the points of a grid, or a table of sines."""
    some = _numbers(tensor)[:MAX_EXAMINED_ELEMENTS]
    if some.size < 4 or not np.isfinite(some).all():
        return False
    if some.min() == some.max():
        return tensor.size > some.size  # the strides of the cells of a detector begin with thousands of equal ones
    if is_row(tensor):
        return np.unique(some).size <= min(8, some.size // 2) or bool(
            np.ptp(np.diff(some)) < 0.05 * np.ptp(some) / some.size
        )
    if np.unique(some).size <= some.size // 2:
        return True
    columns = next(n for n in reversed(tensor.shape.numpy()) if n != 1)
    rows = some[columns : 5 * columns]
    if rows.size < 4 * columns:
        return False
    rows = rows.reshape(-1, columns)
    gaps = np.abs((rows[0] + rows[2]) * rows[2] - (rows[1] + rows[3]) * rows[1])
    return bool((gaps < 0.01 * np.abs(rows).max() ** 2).all())


def may_be_fixed(name: str, tensor: ir.TensorProtocol) -> bool:
    """Return True for what is called a buffer, and for kernels without a layer's name of which some taps are those of
    the other end, or close to them: they may be buffers, which some exporters do not tell from parameters.
    """
    if "buffer" in name.rpartition(".")[2]:
        return True
    if len(tensor.shape) > 2 and peaks_in_order(tensor):
        return True
    if len(tensor.shape) < 3 or "weight" in name.rpartition(".")[2]:
        return False
    sizes = np.sort(np.abs(_numbers(tensor)[:MAX_EXAMINED_ELEMENTS]))
    pairs = np.diff(sizes) <= 1e-5 * sizes[1:]
    return bool(pairs.mean() > 0.25) if pairs.size else False


def counts(tensor: ir.TensorProtocol) -> bool:
    return is_row(tensor) and tensor.size >= 4 and np.array_equal(_numbers(tensor), range(tensor.size))


def _masks(numbers: NDArray[np.float64]) -> bool:
    lowest = numbers.min()
    barred = lowest if lowest <= -100 and 0 in numbers else -np.inf
    return bool((np.isin(numbers, (0, 1, barred)) | (numbers <= np.finfo(np.float32).min)).all())
