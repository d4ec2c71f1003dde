"""Differences of floating-point arrays in units in the last place (ULP)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def largest(stated: Any, made: Any) -> int | None:
    """The largest distance of two elements, as the number of representable values from one to the other.

    An element that differs by no more than the type's epsilon counts 0: near zero, numbers lie so close to each other
    that any rounding passes millions of them. NaN equals NaN.

    Args:
        stated: an array of any shape and dtype.
        made: one of the same shape and dtype.

    Returns:
        None where the dtype is no floating point.
    """
    stated, made = np.asarray(stated), np.asarray(made)
    if stated.dtype.kind == "c":
        return max(largest(stated.real, made.real) or 0, largest(stated.imag, made.imag) or 0)
    if not is_float(stated.dtype) or not stated.size:
        return None
    numbers, others = stated.astype(np.float64), made.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(numbers - others) <= float(ml_dtypes.finfo(stated.dtype).eps)
    same = near | (numbers == others) | (np.isnan(numbers) & np.isnan(others))
    steps = np.abs(_places(stated) - _places(made))
    return int(np.where(same, 0, steps).max())


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is floating point; numpy counts the small ones of ml_dtypes among its void types."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _places(array: Any) -> Any:
    """The place of each element among all values of its type, in their order; as float64, exact below 2**53."""
    width = array.dtype.itemsize
    bits = np.ascontiguousarray(array).view(f"u{width}").astype(np.uint64)
    sign = np.uint64(1 << (8 * width - 1))
    places = (bits & (sign - np.uint64(1))).astype(np.float64)
    return np.where(bits & sign, -places, places)
