"""Decide if two results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.paranoid.single import dtype_of

# Constants are recognised to five digits (`passes.match.NEAR`), so that float64 tells formulas apart, not roundings.
WIDE = 1e-5
LOOSE = 1e-3
CANCELLATION_ERROR = 1e-15  # rounding residue of sums of numbers of about 1 that cancel
MAX_TIES_PART = 1 / 16  # part of the elements that may be at a tie, as averages of a few integers often are
RTOL_BY_TYPE = {ir.DataType.FLOAT: 1e-4, ir.DataType.FLOAT16: 2e-2, ir.DataType.BFLOAT16: 5e-2}


def unlike(before: Any, after: Any, wide: bool, exact: bool, slack: Any = 0.0) -> str:
    """Describe how two values differ; "" if they do not.

    `exact`: elements are only moved, not computed. `slack`: allowed rounding error, for all elements or for each.
    """
    if isinstance(before, list) or isinstance(after, list):
        if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
            return "one is a list of other length"
        return next((text for a, b in zip(before, after) if (text := unlike(a, b, wide, exact))), "")
    if before is None or after is None:
        return "" if before is after else "one is left out"
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape:
        return f"the shape was {list(before.shape)} and is {list(after.shape)}"
    if wide:
        before, after, wide = widened(before), widened(after), before.dtype == after.dtype
    if before.dtype != after.dtype:
        return f"the type was {before.dtype} and is {after.dtype}"
    return _unlike_elements(before, after, wide, exact, slack)


def _unlike_elements(before: Any, after: Any, wide: bool, exact: bool, slack: Any) -> str:
    dtype = dtype_of(before)
    if exact or dtype == ir.DataType.STRING or not dtype.is_floating_point():
        same = before == after
        if dtype != ir.DataType.STRING and dtype.is_floating_point():
            same |= np.isnan(before) & np.isnan(after)
        return "" if np.all(same) else f"{np.count_nonzero(~np.asarray(same)):,} of {before.size:,} elements differ"
    if np.array_equal(before, after):
        return ""
    a, b = before.astype(np.float64), after.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.all(finite | (a == b) | (np.isnan(a) & np.isnan(b))):
        return "one is finite where the other is not"
    scale, gaps = np.max(np.abs(a), initial=0.0, where=finite), _gaps(a, b)
    near = WIDE if wide else RTOL_BY_TYPE.get(dtype, LOOSE)
    most = near * scale + (CANCELLATION_ERROR if wide else 1e-2 * near)
    if np.all(gaps <= most + slack):
        return ""
    return f"the largest difference is {gaps.max(initial=0.0):.3g} of {scale:.3g}"


def only_ties(before: Any, after: Any) -> bool:
    """Return True if results of 8 bits differ by 1 in few places."""
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape or before.dtype != after.dtype or before.dtype not in (np.int8, np.uint8):
        return False
    gaps = np.abs(before.astype(int) - after.astype(int))
    return bool(np.all(gaps <= 1) and np.mean(gaps) <= MAX_TIES_PART)


def tells(value: Any) -> bool:
    """Return True if a result has a number to compare."""
    if value is None:
        return False
    if isinstance(value, list):
        return any(map(tells, value))
    value = np.asarray(value)
    return bool(np.any(~np.isnan(value)) if value.dtype.kind == "f" else value.size)


def widened(value: Any) -> Any:
    """Convert floats to float64."""
    if isinstance(value, list):
        return [widened(v) for v in value]
    return value.astype(np.float64) if value is not None and dtype_of(value).is_floating_point() else value


def gap_of(a: Any, b: Any) -> float:
    """Return the largest difference of elements that are finite in both."""
    return float(np.max(_gaps(a, b), initial=0.0))


def gaps_of(a: Any, b: Any) -> Any:
    """Return, for each element, the largest difference in its row (the last axis), or a tenth of the overall
    largest.
    """
    found = _gaps(a, b)
    rows = found.max(-1, keepdims=True, initial=0.0) if found.ndim else found
    return np.maximum(np.broadcast_to(rows, found.shape), found.max(initial=0.0) / 10)


def _gaps(a: Any, b: Any) -> Any:
    finite = np.isfinite(a) & np.isfinite(b)
    return np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
