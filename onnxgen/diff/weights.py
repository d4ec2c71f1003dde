"""How a tensor changed, and what became of all of them in a sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.diff.answer import Weight
from onnxgen.errors import counted

Array = NDArray[Any]
ROUNDING = 2.0**-20  # of the largest element: what folding a tensor in float32 may change
LEVELS = 256  # of a grid of 8 bits
PARTS = 33  # steps that the smallest distance of two elements may have
INTEGERS = 0.02  # of the norm: by less, a tensor of a quantised file was rounded and not trained
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
GROUPS = 4  # that a sentence names
WORDS = {"half": "rounded to half precision", "quantised": "quantised to 8 bits", "pruned": "pruned"}


def compared(name: str, was: Sequence[str], old: Array, new: Array, computed: bool = False) -> Weight:
    """Compare a tensor with what it was.

    Args:
        name: the key of the new tensor.
        was: the keys of what the old one is made of.
        old: of the same shape.
        new: the tensor.
        computed: the old one was computed of several tensors, and may be rounded otherwise.
    """
    keys, shape = tuple(was), tuple(new.shape)
    if old.dtype == new.dtype and (old.tobytes() == new.tobytes() or _equal(old, new)):
        return Weight(name, keys, "same", "", shape)
    if old.dtype != new.dtype and old.dtype.kind != new.dtype.kind:
        return Weight(name, keys, "changed", f"{old.dtype} -> {new.dtype}", shape)
    if new.dtype.kind not in "fV" or old.dtype.kind not in "fV":
        share = float(np.mean(old != new)) if new.size else 0.0
        return Weight(name, keys, "changed", f"{share:.0%} of the elements differ", shape, share, 1 - share, math.inf)
    a, b = old.astype(np.float64), new.astype(np.float64)
    change, size = float(np.linalg.norm((b - a).ravel())), float(np.linalg.norm(a.ravel()))
    relative = change / size if size else math.inf
    length = size * float(np.linalg.norm(b.ravel()))
    cosine = float(np.dot(a.ravel(), b.ravel())) / length if length else 0.0
    largest = float(np.abs(b - a).max())
    how, what = _how(a, b, largest, computed)
    if old.dtype != new.dtype and not largest:
        how, what = "changed", f"{old.dtype} -> {new.dtype}"
    return Weight(name, keys, how, what or f"changed by {relative:.2g} of its norm", shape, relative, cosine, largest)


def _equal(old: Array, new: Array) -> bool:
    return bool(np.array_equal(old, new, equal_nan=old.dtype.kind in "fc"))


def _how(a: Array, b: Array, largest: float, computed: bool) -> tuple[str, str]:
    """Say how `b` was made of `a`, if that is known."""
    top = float(np.abs(a).max())
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return "changed", "not finite"
    if computed and largest <= ROUNDING * top:
        return "rounding", "the same but for rounding"
    with np.errstate(over="ignore"):
        if np.array_equal(a.astype(np.float16).astype(np.float64), b):
            return "half", "rounded to float16"
    if np.array_equal(_bfloat16(a), b):
        return "half", "rounded to bfloat16"
    kept = b != 0
    if not kept.all() and np.array_equal(a[kept], b[kept]):
        return "pruned", f"{1 - float(kept.mean()):.0%} of the elements are 0"
    for axis in (None, *range(a.ndim)):
        if _is_on_grid(a, b, axis):
            return "quantised", "rounded to 8 bits" + ("" if axis is None else ", each channel with its own scale")
    factor = float(np.vdot(a, b) / np.vdot(a, a)) if top else 0.0
    if a.size > 1 and factor and np.abs(b - factor * a).max() <= ROUNDING * abs(factor) * top:
        return "scaled", f"multiplied by {factor:.6g}"
    return "changed", ""


def _bfloat16(a: Array) -> Array:
    """Return float32 numbers rounded to bfloat16: to the nearest, ties to even."""
    bits = a.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    wide: Array = rounded.astype(np.uint32).view(np.float32).astype(np.float64)
    return wide


def _is_on_grid(a: Array, b: Array, axis: int | None) -> bool:
    """Return True if each row of `b` is that of `a`, rounded to a grid of 8 bits. A grid has 0 on it."""
    rows, were = ([array.reshape(1, -1)] if axis is None else [np.moveaxis(array, axis, 0)] for array in (b, a))
    flat, before = rows[0].reshape(rows[0].shape[0], -1), were[0].reshape(were[0].shape[0], -1)
    if flat.shape[1] < 2:
        return False
    steps = []
    for row, old in zip(flat, before, strict=True):
        levels = np.unique(row)
        if len(levels) > LEVELS or (len(levels) == len(row) > 2 and len(row) > LEVELS):
            return False
        if len(levels) == 1 and levels[0] == 0:
            if np.abs(old).max() > 0:
                return False
            continue
        gap = _step(levels)
        if gap is None or np.abs(row - old).max() > gap * 0.5 * (1 + 1e-3) + clipped(row, old, levels, gap):
            return False
        steps.append(gap)
    return bool(steps) and any(len(np.unique(row)) >= 2 for row in flat) and flat.shape[1] >= 8


def clipped(row: Array, old: Array, levels: Array, gap: float) -> float:
    """Return by how much more an element at the end of the grid may differ: by one step, as a range is cut there."""
    ends = (row == levels[0]) | (row == levels[-1])
    inner = np.abs(row - old)[~ends]
    return gap if ends.any() and (not inner.size or inner.max() <= gap * 0.5 * (1 + 1e-3)) else 0.0


def _step(levels: Array) -> float | None:
    """Return the step of a grid with 0 on it that has these levels, or None if it has no 8 bits."""
    values = np.unique(np.abs(np.concatenate([levels, np.diff(levels)])))
    values = values[values > 0]
    if not values.size:
        return None
    top = float(np.abs(levels).max())
    first = float(values[0])
    for part in range(1, PARTS):
        step = first / part
        if (levels[-1] - levels[0]) / step > LEVELS:
            return None
        step = top / round(top / step)  # a difference of rounded numbers is not exact
        if np.abs(levels / step - np.round(levels / step)).max() < 1e-3 and top / step <= LEVELS:
            return step
    return None


def rounded(weight: Weight) -> Weight:
    """Return what is said of a tensor of a file that is known to be quantised: a small change is its rounding."""
    if weight.how != "changed" or weight.relative > INTEGERS:
        return weight
    how = f", by {weight.relative:.2g} of its norm" if weight.relative else ": these numbers"
    return replace(weight, how="quantised", what=f"rounded to integers{how}")


def told(weights: Sequence[Weight]) -> list[str]:
    """Return what became of the weights, in sentences."""
    there = [weight for weight in weights if weight.how not in ("added", "removed", "resized")]
    changed = [weight for weight in there if weight.how not in ("same", "rounding")]
    if not changed:
        return []
    said = []
    for how, words in WORDS.items():
        alike = [w for w in changed if w.how == how]
        if alike:
            said.append(f"{words}: {_which(alike, there)}")
    rest = [w for w in changed if w.how not in WORDS]
    if rest:
        said.append(f"{_which(rest, there)} changed, by {_median(rest):.2g} of the norm (median)")
    return said


def _median(weights: Sequence[Weight]) -> float:
    return sorted(w.relative for w in weights)[len(weights) // 2]


def _which(some: Sequence[Weight], all_: Sequence[Weight]) -> str:
    """Name some of all tensors."""
    names = [w.name for w in some]
    others = [w for w in all_ if w.name not in {*names}]
    if not others:
        return f"all {counted(len(some), 'tensor')}" if len(some) > 1 else f"the only tensor, {some[0].name},"
    left = [w for w in others if not w.name.endswith(STATISTICS)]
    if not left and not any(name.endswith(STATISTICS) for name in names):
        return "all weights but the statistics of BatchNorm"
    if all(name.endswith(STATISTICS) for name in names):
        return "only the statistics of BatchNorm"
    if len(some) == 1:
        return f"only {some[0].name}"
    for depth in range(max(name.count(".") for name in names), 0, -1):
        groups = Counter(".".join(name.split(".")[:depth]) for name in names)
        if len(groups) == 1:
            return f"only {next(iter(groups))} ({counted(len(some), 'tensor')})"
    groups = Counter(name.split(".")[0] for name in names)
    shown = ", ".join(list(groups)[:GROUPS]) + (f" and {len(groups) - GROUPS} more" if len(groups) > GROUPS else "")
    return f"{len(some)} of {len(all_)} tensors (in {shown})"
