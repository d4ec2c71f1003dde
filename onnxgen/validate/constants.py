"""Recompute constants that are written as expressions, such as `torch.arange(n) * 0.5`, and compare their elements.

The rules compute each function with numpy, as torch's documentation defines it. An expression without a rule is wrong.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.literals import linspace
from onnxgen.code.torch_api import function_of
from onnxgen.errors import WrongTranslation
from onnxgen.validate.values import PYTHON
from onnxgen.weights.dtypes import TORCH_DTYPES

Array = NDArray[Any]
# Reversed, so that the first of several names wins.
DTYPES = {name: dtype.numpy() for dtype, name in reversed(TORCH_DTYPES.items())}
OPERANDS = (ast.Call, ast.Subscript, ast.BinOp, ast.Attribute)  # that a method is called of, and not a module
DEFAULT = np.dtype(np.float32)  # dtype of torch.ones and of Python floats


FUSED: ContextVar[bool] = ContextVar("FUSED", default=False)  # if kernels multiply and add at once


def checked(tree: ast.expr, array: Array, dtype: ir.DataType, is_loaded: bool = False) -> ast.expr:
    """Return `tree` if it makes exactly the elements of `array`, on every processor.

    Args:
        tree: the expression in `__init__`.
        array: the stored elements; text is an object array.
        dtype: the required type of the torch tensor.
        is_loaded: the sidecar has the elements, so it is enough that each is right on some processor.

    Raises:
        WrongTranslation: the elements, shape or type differ, or no rule computes the expression.
    """
    computed = _computed(tree, False)
    wanted = np.dtype(object) if array.dtype == object else DTYPES[TORCH_DTYPES[dtype]]
    expected = array.astype(wanted)
    if "linspace" in ast.dump(tree):
        other = _computed(tree, True)
        computed = np.where(
            (computed == expected) == is_loaded, computed, other
        )  # the right one of both, or else the wrong one
    same = computed.dtype == wanted and computed.shape == array.shape
    if not same or computed.tolist() != expected.tolist() or _signs(computed) != _signs(expected):
        raise WrongTranslation(f"a constant of {dtype.name} {list(array.shape)} is written as other numbers")
    return tree


def _computed(tree: ast.expr, fused: bool) -> Array:
    token = FUSED.set(fused)
    try:
        return np.asarray(_value(tree))
    except Exception as error:  # any error means that nothing was proven
        raise WrongTranslation(f"a constant is written as what nobody can compute: {error}") from error
    finally:
        FUSED.reset(token)


def _signs(array: Array) -> list[bool]:
    """Return True for each negative element. -0.0 counts as negative."""
    return [] if array.dtype == object else np.signbit(array.astype(np.float64)).reshape(-1).tolist()


def _value(tree: ast.expr) -> Any:
    """Compute an expression: a number, a tuple, a list, a numpy dtype or an array."""
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, (ast.List, ast.Tuple)):
        items = [_value(item) for item in tree.elts]
        return items if isinstance(tree, ast.List) else tuple(items)
    if isinstance(tree, ast.UnaryOp):
        return PYTHON[type(tree.op)](_value(tree.operand))
    if isinstance(tree, ast.BinOp):
        return _binary(PYTHON[type(tree.op)], _value(tree.left), _value(tree.right))
    if isinstance(tree, ast.Subscript):
        return _value(tree.value)[_index(tree.slice)]
    if isinstance(tree, ast.Attribute) and tree.attr == "T":
        return _value(tree.value).T
    if isinstance(tree, ast.Attribute):
        return _limit(tree) if isinstance(tree.value, ast.Call) else DTYPES[tree.attr]
    if isinstance(tree, ast.Call):
        return _call(tree)
    if isinstance(tree, ast.Name) and tree.id == "object":
        return np.dtype(object)
    raise ValueError(type(tree).__name__)


def _binary(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Array:
    """Apply a function to two arrays, or to an array and a number.

    The dtype is that of the arrays of floats; for integers alone it is theirs, but float32 with a float or a division.
    """
    arrays = [x for x in (a, b) if isinstance(x, np.ndarray)]
    kinds = [x.dtype for x in arrays if x.dtype.kind == "f"]
    if not kinds:
        is_float = function is operator.truediv or not all(isinstance(x, (int, np.ndarray)) for x in (a, b))
        kinds = [DEFAULT] if is_float else [x.dtype for x in arrays]
    kind = np.result_type(*kinds)
    return np.asarray(function(np.asarray(a).astype(kind), np.asarray(b).astype(kind)))


def _index(tree: ast.expr) -> Any:
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    if len(parts) == 1 and isinstance(tree, (ast.Call, ast.BinOp)):
        return _rows(_value(tree))
    if not all(_is_whole(part) or (isinstance(part, ast.Constant) and part.value is None) for part in parts):
        raise ValueError("an index that takes elements")
    return tuple(slice(None) if isinstance(part, ast.Slice) else None for part in parts)


def _rows(index: Array) -> Array:
    if index.dtype != np.int64 or index.ndim != 1 or bool((index < 0).any()):
        raise ValueError("an index of other rows")
    return index


def _is_whole(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Slice) and tree.lower is tree.upper is tree.step is None


def _limit(tree: ast.Attribute) -> float:
    """Compute `torch.finfo(torch.float32).min` and similar attributes."""
    assert isinstance(tree.value, ast.Call) and function_of(tree.value) == "torch.finfo"
    return float(getattr(np.finfo(_value(tree.value.args[0])), tree.attr))


def _call(tree: ast.Call) -> Any:
    keywords = {k.arg or "": _value(k.value) for k in tree.keywords if k.arg != "device"}
    dtype, args = keywords.pop("dtype", None), [_value(a) for a in tree.args]
    name = function_of(tree)
    if isinstance(tree.func, ast.Attribute) and isinstance(tree.func.value, OPERANDS):
        name, args = f".{tree.func.attr}", [_value(tree.func.value), *args]
    if name not in FUNCTIONS or keywords.keys() - KEYWORDS.get(name, set()):
        raise ValueError(name)
    return FUNCTIONS[name](dtype, *args, **keywords)


def _of_numbers(dtype: np.dtype[Any] | None, values: Any) -> Array:
    array = np.array(values, dtype if dtype == np.uint64 else None)  # numpy makes floats of 2**63 and 1
    return array.astype(dtype if dtype is not None else DEFAULT if array.dtype.kind == "f" else array.dtype)


def _product(dtype: None, *sides: Array) -> Array:
    """Return all pairs of elements, the first side's slowest."""
    if any(side.ndim != 1 or side.dtype != sides[0].dtype for side in sides):
        raise ValueError("torch.cartesian_prod of other than vectors of one type")
    return np.stack([m.reshape(-1) for m in np.meshgrid(*sides, indexing="ij")], -1)


def _windows(dtype: None, height: int, width: int) -> Array:
    """Return the table row for each pair of tokens of a window: by their distance in rows, then in columns."""
    place = np.array([(y, x) for y in range(height) for x in range(width)])
    apart = place[:, None] - place[None] + (height - 1, width - 1)
    return np.asarray(apart[..., 0] * (2 * width - 1) + apart[..., 1])


def _centres(dtype: None, height: int, width: int, stride: float = 1, offset: float = 0.5) -> Array:
    """Return x and y of the cells of a grid, row by row: each sum and product is rounded once."""
    x, y = np.meshgrid(*((np.arange(size, dtype=DEFAULT) + DEFAULT.type(offset)) for size in (width, height)))
    return np.asarray(np.stack([x.reshape(-1), y.reshape(-1)], -1) * DEFAULT.type(stride))


KEYWORDS = {"make_grid": {"offset"}}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "make_grid": _centres,
    "torch.tensor": _of_numbers,
    "torch.full": lambda dtype, shape, value: np.broadcast_to(_of_numbers(dtype, value), shape),
    "torch.zeros": lambda dtype, *shape: np.zeros(shape, dtype or DEFAULT),
    "torch.ones": lambda dtype, *shape: np.ones(shape, dtype or DEFAULT),
    "torch.empty": lambda dtype, shape: np.empty(shape if 0 in shape else (), dtype or DEFAULT),
    "torch.arange": lambda dtype, *bounds: np.arange(*bounds).astype(dtype or np.int64),
    "torch.eye": lambda dtype, *sides: np.eye(*sides).astype(dtype or DEFAULT),
    "torch.linspace": lambda dtype, start, end, count: np.asarray(linspace(start, end, count, FUSED.get())),
    "torch.cartesian_prod": _product,
    "torch.cat": lambda dtype, arrays: np.concatenate(arrays, casting="no"),
    "relative_positions": _windows,
    "float": lambda dtype, text: float(text),
    "np.array": lambda dtype, values: np.array(values, dtype=object),
    "np.empty": lambda dtype, shape: np.empty(shape if 0 in shape else (), dtype=object),
    ".tril": lambda dtype, array, *diagonal: np.tril(array, *diagonal),
    ".triu": lambda dtype, array, *diagonal: np.triu(array, *diagonal),
    ".flip": lambda dtype, array, axis: np.flip(array, axis),
    ".float": lambda dtype, array: array.astype(np.float32),
    ".reshape": lambda dtype, array, *shape: array.reshape(shape),
    ".repeat_interleave": lambda dtype, array, times: np.repeat(array, times),
    ".repeat": lambda dtype, array, *times: np.tile(array, times),
}
