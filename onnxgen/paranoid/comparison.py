"""Compare both sides of a region on drawn inputs: many (`verdict`), or few, quickly (`is_same`).

`unlike` decides if two results are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import card, is_a
from onnxgen.graph.traits import EXACT
from onnxgen.paranoid.claims import Broken, Refused, Region, Unable, Untold
from onnxgen.paranoid.draws import (
    DRAWN_SIZES,
    ENOUGH_ROWS,
    EVERY,
    QUICK,
    STYLES,
    Style,
    element_count,
    elements,
    facts_of,
    few_sizes,
    shape_counts,
    sizes,
)
from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.run import Side
from onnxgen.paranoid.single import Single, dtype_of
from onnxgen.shapes import usual

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
    gaps = _gaps(a, b)
    rows = gaps.max(-1, keepdims=True, initial=0.0) if gaps.ndim else gaps
    return np.maximum(np.broadcast_to(rows, gaps.shape), gaps.max(initial=0.0) / 10)


def _gaps(a: Any, b: Any) -> Any:
    finite = np.isfinite(a) & np.isfinite(b)
    return np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))


MAX_ELEMENTS_ALL_DRAWS, MAX_ELEMENTS_ONE_DRAW, MAX_ELEMENTS = (
    3_000_000,
    60_000_000,
    400_000_000,
)  # elements of a region; larger ones get fewer draws, or none
QUICK_SLACK, HALF_SLACK = 5e-4, 3e-2  # a part of the largest element
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
MIXED_ROWS = 4  # rows of drawn sizes: two of several sizes, one of ones, one of equal ones
MAX_ELEMENTS_WIDE = 4_000_000  # elements of a region that is compared quickly in float64; larger ones in float32
MAX_ELEMENTS_MORE_DRAWS, MORE_DRAWS = 10_000, (1, 2)  # elements of a region; smaller ones get these additional draws
FLOAT32_KERNEL_TOLERANCE = 0.05  # allowed difference, as a part of the largest element, of kernels without float64


class Comparison:
    """Compares one region on several draws. `more`: additional draws."""

    def __init__(self, region: Region, single: Single, more: tuple[Style, ...] = ()) -> None:
        self.region, self.single = region, single
        steps = [*region.before.steps, *region.after.steps]
        self.exact = all(_moves(step) for step in steps)
        # kernels outside the standard do not check positions and lengths, so drawn ones must be small; 8-bit integers
        # are not positions
        self.trusts = any(step.domain not in ("", DOMAIN) for step in steps)
        self.styles = [replace(s, integers=STYLES[0].integers, bytes=s.integers) for s in STYLES]
        self.styles = self.styles if self.trusts else list(STYLES)
        self.is_usual = all(map(_is_usual, steps))
        outputs = [facts_of(cone.picture, v) for cone in region.cones for step in cone.steps for v in step.outputs]
        self.is_half = any(facts.dtype in HALVES for facts in outputs)
        drawn = [facts_of(cone.picture, v) for cone in region.cones for v in cone.cuts]
        self.shapes = shape_counts([*drawn, *outputs])
        self.has_epsilon = any("epsilon" in step.attributes for step in steps)
        self.more = list(more)
        self.fits = any(step.domain and card(step.domain, step.op).rules.axes for step in region.before.steps)

    def verdict(self) -> str:
        """Describe how both sides differ, or return "". Raises `Untold` if no draw can be computed.

        The second side may refuse some sizes if it runs on at least as many others: the network cannot take these. But
        it must run on sizes that were made to fit.
        """
        reasons, faults = list[Untold](), list[str]()
        conclusive = 0
        for turn, numbers in enumerate(sizes(self.region)):
            if conclusive and turn >= len(DRAWN_SIZES):
                break
            try:
                difference = self._on(numbers)
            except Broken as error:
                faults.append(f"it no longer runs: {error}")
                if self.fits and 1 not in numbers.values():
                    return faults[0]
                continue
            except Untold as error:
                reasons.append(error)
                continue
            if difference:
                return difference
            conclusive += 1
            if conclusive == ENOUGH_ROWS:
                break
        if conclusive == 0 and not faults:
            raise [*reasons, Untold("nothing was computed")][0]
        return faults[0] if conclusive < len(faults) else ""

    def is_same(self, most: int, everywhere: bool = False) -> bool:
        """Return True if both sides are the same on the first sizes on which the first one runs, or on all of several
        (`everywhere`). False says only that more must be drawn. Raises `Untold` if nothing is computed, since there are
        more than `most` elements, say.
        """
        why: list[Untold] = []
        is_told = False
        for numbers in sizes(self.region, DRAWN_SIZES[:MIXED_ROWS]) if everywhere else few_sizes(self.region):
            if (weight := self._weight(numbers)) > most:
                raise Untold(f"more than {most:,} elements")
            is_same: bool | None = None
            for verdict in self._told(numbers, weight <= MAX_ELEMENTS_WIDE, why):
                if verdict is False:
                    return False  # what other draws tell does not matter
                is_same = verdict or is_same
            is_told = is_told or bool(is_same)
            if is_told and not everywhere:
                break
        if is_told:
            return True
        raise why[0] if why else Untold("nothing but NaN on every draw")

    def _told(self, numbers: dict[str, int], wide: bool, why: list[Untold]) -> Iterator[bool | None]:
        """Yield what each draw tells. Adds to `why` the reason of each that cannot be computed."""
        wide = wide and self.is_usual and not self.exact
        hidden = [style for style in self.more if style.filled is not None and style.filled[0] < len(self.region.keys)]
        for style in (*QUICK[: 2 if wide or self.exact else 1], *QUICK[2:][: self.has_epsilon], *hidden):
            try:
                yield self._is_same(numbers, style, wide)
            except Broken:
                yield False
            except Untold as error:
                why.append(error)

    def _is_same(self, numbers: dict[str, int], style: Style, wide: bool) -> bool | None:
        """Return True if both sides are the same on one draw, None if that has no number to compare."""
        expected, got = self._both(numbers, style, wide)
        # what is wrong differs by more than rounding does: that of float32, or of constants in half precision
        part = HALF_SLACK if self.is_half else 0.0 if wide else QUICK_SLACK
        is_number = isinstance(expected, np.ndarray) and expected.dtype.kind != "O"
        is_rounded = part > 0 and is_number and not self.exact
        slack = part * gap_of(expected, 0) if is_rounded else 0.0
        if unlike(expected, got, wide, self.exact, slack):
            return False
        return True if tells(expected) else None

    def _weight(self, numbers: dict[str, int]) -> int:
        return element_count(self.shapes, numbers)

    def _on(self, numbers: dict[str, int]) -> str:
        """Compare both sides on some sizes. Raises `Broken` if only the second side fails on them."""
        weight = self._weight(numbers)
        if weight > MAX_ELEMENTS:
            raise Untold(f"more than {MAX_ELEMENTS:,} elements")
        is_conclusive, why = False, None
        for style, wide in self._draws(weight):
            try:
                difference, telling = self._once(numbers, style, wide)
            except Untold as error:
                if isinstance(error, Broken) and not wide:
                    raise
                why = why or error
                continue
            if difference:
                return f"{difference} ({style.name} inputs, {'float64' if wide else 'as it is'})"
            is_conclusive = is_conclusive or telling
        if not is_conclusive:
            raise why or Untold("nothing but NaN on every draw")
        return ""

    def _draws(self, weight: int) -> Iterator[tuple[Style, bool]]:
        """Yield how the elements of a region of this size are drawn, and if both sides are computed in float64."""
        count = len(self.styles) if weight < MAX_ELEMENTS_ALL_DRAWS else 1 if weight < MAX_ELEMENTS_ONE_DRAW else 0
        # most kernels outside the standard have no float64, so there are more draws in their own types
        yield from ((style, False) for style in (self.styles[: max(1, count)] if self.trusts else STYLES[:1]))
        if self.trusts and weight < MAX_ELEMENTS_MORE_DRAWS:
            yield from ((replace(s, name=f"{s.name}, again {n}"), False) for n in MORE_DRAWS for s in self.styles[:2])
        yield from ((style, not self.exact) for style in (*self.styles[:count], *self.more[: count * EVERY]))

    def _once(self, numbers: dict[str, int], style: Style, wide: bool) -> tuple[str, bool]:
        """Return how both sides differ on one draw, and whether that draw is conclusive."""
        try:
            expected, got = self._both(numbers, style, wide)
        except Broken:
            self._ask_again(numbers, style, wide, None)
            raise
        difference = unlike(expected, got, wide, self.exact)
        if difference and self.trusts and style.bytes != STYLES[0].integers and only_ties(expected, got):
            difference = ""
        if difference and wide:
            self._trust(expected, got, self._both(numbers, style, wide=False))
        elif difference and not self.exact and getattr(expected, "shape", 0) == getattr(got, "shape", 1):
            difference = unlike(expected, got, wide, self.exact, self._rounding(numbers, style, (expected, got)))
        if difference:
            self._ask_again(numbers, style, wide, got)
        return difference, tells(expected)

    def _ask_again(self, numbers: dict[str, int], style: Style, wide: bool, got: Any) -> None:
        """Raise `Untold` if another implementation of the first side agrees with the second side or refuses
        the inputs.
        """
        before = self.region.before
        if any(step.domain not in ("", DOMAIN) for step in before.steps):
            return
        side = Side(before.picture, Single(second=True, most=self.single.most), numbers, wide)
        try:
            with np.errstate(all="ignore"):
                other = side.value(before, elements(self.region, numbers, style, wide))
        except Untold as error:
            if got is None and not isinstance(error, Unable):
                raise Untold(f"onnxruntime alone runs it: {error}") from None
            return
        if got is not None and not unlike(other, got, wide, self.exact):
            raise Untold("onnxruntime and onnx.reference compute something else")

    def _trust(self, expected: Any, got: Any, narrow: tuple[Any, Any]) -> None:
        """Raise `Untold` unless each side computes the same in float64 as in its own types."""
        for one, other in zip((expected, got), narrow):
            if unlike(widened(other), widened(one), wide=False, exact=False):
                raise Untold("an operator computes something else in float64")

    def _rounding(self, numbers: dict[str, int], style: Style, narrow: tuple[Any, Any]) -> Any:
        """Return how far rounding may separate both sides: four times the distance of one side from itself in float64,
        for each row.
        """
        rounding: Any = 0.0
        drawn = elements(self.region, numbers, style, wide=True)
        for cone, one in zip((self.region.before, self.region.after), narrow):
            with suppress(Untold), np.errstate(all="ignore"):
                other = Side(cone.picture, self.single, numbers, wide=True).value(cone, drawn)
                if getattr(other, "shape", None) == getattr(one, "shape", ()) and one.dtype.kind == "f":
                    rounding = np.maximum(rounding, 4 * gaps_of(widened(one), widened(other)))
        if self.trusts and isinstance(narrow[0], np.ndarray) and narrow[0].dtype.kind == "f":
            first = np.abs(widened(narrow[0]))
            rounding = np.minimum(
                rounding, FLOAT32_KERNEL_TOLERANCE * np.max(first, initial=0.0, where=np.isfinite(first))
            )
        return rounding

    def _both(self, numbers: dict[str, int], style: Style, wide: bool) -> tuple[Any, Any]:
        """Return the values of both sides. Raises `Broken` if only the first one runs, `Untold` if it does not."""
        drawn = elements(self.region, numbers, style, wide)
        before, after = self.region.before, self.region.after
        with np.errstate(all="ignore"):
            first, second = (Side(cone.picture, self.single, numbers, wide) for cone in (before, after))
            try:
                expected = first.value(before, drawn)
            except Broken as error:
                raise Refused(str(error)) from None
            got = second.value(after, drawn)
            if first.narrowed or second.narrowed:
                raise Untold("an operator computes in float32 alone")
            return expected, got


def _is_usual(step: Made) -> bool:
    return step.domain == DOMAIN or usual.has(step.domain, step.op)


def _moves(step: Made) -> bool:
    return is_a(step.node, EXACT) and step.domain in ("", DOMAIN)
