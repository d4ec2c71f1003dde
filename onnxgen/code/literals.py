"""Constant tensors as what they are: `torch.arange(n)`, a lower triangle of ones, or the numbers themselves."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import OMIT, call, literal, quote, shortest

# types for which torch has neither arange nor tril
PLAIN_ONLY = {d for d in ir.DataType if d.name.startswith(("UINT16", "UINT32", "UINT64", "FLOAT8"))}
INLINE_ELEMENTS = 64  # larger unrecognised tensors go to the sidecar


def _nested(values: Any, dtype: ir.DataType) -> Any:
    if isinstance(values, list):
        return [_nested(v, dtype) for v in values]
    return shortest(values, dtype) if isinstance(values, float) else values


def _dtype_argument(dtype: ir.DataType, implied: ir.DataType) -> Any:
    return OMIT if dtype == implied else dtype


def _uniform(array: NDArray[Any], dtype: ir.DataType, device: Any) -> ast.expr | None:
    first = array.reshape(-1)[0]
    if array.size < 2 or not bool((array == first).all()) or (np.signbit(array).any() and first == 0):
        return None
    given = _dtype_argument(dtype, ir.DataType.FLOAT)
    shape = tuple(array.shape)
    if first == 0 and dtype.is_floating_point():
        return call("torch.zeros", shape, dtype=given, device=device)
    if first == 1 and dtype.is_floating_point():
        return call("torch.ones", shape, dtype=given, device=device)
    return call("torch.full", shape, _nested(first.item(), dtype), dtype=dtype, device=device)


def _arange(array: NDArray[Any], dtype: ir.DataType, device: Any) -> ast.expr | None:
    """A run of integers along the only axis that is not 1, as `torch.arange(...)`."""
    if array.size < 4 or max(array.shape) != array.size or array.dtype.kind not in "iu":
        return None
    flat = array.reshape(-1)
    start, step = int(flat[0]), int(flat[1]) - int(flat[0])
    if step == 0 or not bool((flat == np.arange(flat.size, dtype=np.int64) * step + start).all()):
        return None
    stop = start + step * flat.size
    bounds = (stop,) if (start, step) == (0, 1) else (start, stop) if step == 1 else (start, stop, step)
    made = call("torch.arange", *bounds, dtype=_dtype_argument(dtype, ir.DataType.INT64), device=device)
    return made if array.ndim == 1 else quote("x.reshape(s)", x=made, s=tuple(array.shape))


def _triangle(array: NDArray[Any], dtype: ir.DataType, device: Any) -> ast.expr | None:
    """A matrix of ones cut to a triangle by `torch.tril` or `torch.triu`, under leading axes of 1."""
    if array.ndim < 2 or array.size != array.shape[-1] * array.shape[-2] or min(array.shape[-2:]) < 2:
        return None
    matrix = array.reshape(array.shape[-2:])
    if not bool(((matrix == 0) | (matrix == 1)).all()) or (
        np.signbit(matrix).any() if matrix.dtype.kind == "f" else False
    ):
        return None
    ones = call("torch.ones", *matrix.shape, dtype=_dtype_argument(dtype, ir.DataType.FLOAT), device=device)
    for name, cut in (("tril", np.tril), ("triu", np.triu)):
        for diagonal in (0, -1, 1):
            if bool((matrix == cut(np.ones(matrix.shape), diagonal)).all()):
                made = call(f"torch.{name}", ones, *([diagonal] if diagonal else []))
                return made if array.ndim == 2 else quote("x.reshape(s)", x=made, s=tuple(array.shape))
    return None


def tensor_literal(array: NDArray[Any], dtype: ir.DataType, device: Any = OMIT) -> ast.expr | None:
    """The expression that makes this constant tensor, bit for bit, or None if it is large and has no form.

    `device` is an expression for the tensor's device (default: torch's default device).
    """
    if array.dtype.kind not in "biuf":
        widened = dtype in (ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)
        array = array.astype(np.float32) if widened else array.astype(np.int64)
    if array.size:
        for form in (_uniform,) if dtype in PLAIN_ONLY else (_uniform, _arange, _triangle):
            made = form(array, dtype, device)
            if made is not None:
                return made
    if array.size > INLINE_ELEMENTS or bool(np.isnan(array).any() if array.dtype.kind == "f" else False):
        return None
    if 0 in array.shape:
        return call("torch.empty", tuple(array.shape), dtype=dtype, device=device)
    implied = {"f": ir.DataType.FLOAT, "b": ir.DataType.BOOL}.get(array.dtype.kind, ir.DataType.INT64)
    values = literal(_nested(array.tolist(), dtype))
    return call("torch.tensor", values, dtype=_dtype_argument(dtype, implied), device=device)
