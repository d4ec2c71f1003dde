"""Writes constant tensors as short expressions: `torch.arange(n)`, a causal mask, a repeated table, or the numbers.

Every form equals the array bit for bit: it is exact in every order of evaluation, or the array is compared with the
same operations in numpy's IEEE arithmetic, one after the other. There are no forms for functions that torch may round
differently on other machines (sines, powers).
"""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.points import combined, points, rows, stretches
from onnxgen.code.quote import OMIT, call, literal, quote, shortest
from onnxgen.code.spaced import spaced
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
        made = Form(dtype, device, is_loaded).of(array)
        if made is not None:
            return made
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
        made = self._uniform(array)
        if made is not None or self.dtype in PLAIN_ONLY or array.size < 4 or _has_negative_zero(array):
            return made
        core = array
        if array.size > MAX_INLINE_ELEMENTS:
            for axis in range(array.ndim):
                first = core[(ANY,) * axis + (slice(0, 1),)]
                core = first if bool((core == first).all()) else core
        squeezed = core.squeeze()
        made = self.line(squeezed) if squeezed.ndim == 1 else self._table(squeezed)
        if made is not None:
            return _in_shape(made, core.shape, array.shape)
        if core.size < array.size and core.size <= MAX_LISTED and not np.isnan(squeezed.astype(float)).any():
            return _in_shape(self.numbers(squeezed), core.shape, array.shape)
        return None

    def line(self, array: NDArray[Any]) -> ast.expr | None:
        """Return an expression for a vector."""
        return self._arange(array) or spaced(array, self) or self._steps(array) or stretches(array, self)

    def _table(self, array: NDArray[Any]) -> ast.expr | None:
        made = self._eye(array) or self._triangle(array) or self._relative(array) if array.ndim == 2 else None
        return made or points(array, self) or rows(array, self) or combined(array, self)

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
        made = self.call("torch.arange", array.size, implied=ir.DataType.INT64)
        if bool((array == counts // period).all()):
            return quote("x // k", x=made, k=period)
        return quote("x % k", x=made, k=period) if bool((array == counts % period).all()) else None

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
        made = self.call("torch.eye", *sides, implied=ir.DataType.FLOAT)
        return made if scale == 1 else quote("x * s", x=made, s=_nested(scale.item(), self.dtype))

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


def _in_shape(made: ast.expr, core: tuple[int, ...], shape: tuple[int, ...]) -> ast.expr:
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
        made = ast.Subscript(made, index, ast.Load())
    return call(ast.Attribute(made, "repeat", ast.Load()), *repeats) if is_repeated else made
