"""Compare one output with the oracle's: shape, dtype and elements; and could that show a fault?

A module of a quantised file may differ from it by as much as rounding explains
(`weights.dequantised`). If an output hardly varies more than that, any module passes, even one that
returns a constant. That is not agreement (`Telling`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import counted
from onnxgen.verify.convert import widened

SLACK_FACTOR = 4.0  # allowed difference, as a multiple of the oracle's movement when inputs change in their last bits
MIN_AMPLIFICATION = 4.0  # amplification of such a change above which rounding is accepted as a reason
MAX_SLACK_PART = 0.05  # largest such movement, as a part of the output, in root mean square
MAX_ATOL_PART = 0.05  # largest absolute tolerance, as a part of an output's largest element

# smallest (rtol, atol) if a graph computes in or returns these types
HALF_TOLERANCES = {
    "float16": (1e-2, 1e-2),
    "bfloat16": (5e-2, 5e-2),
    "float8_e4m3fn": (0.13, 0.02),
    "float8_e4m3fnuz": (0.13, 0.02),
    "float8_e5m2": (0.26, 0.02),
    "float8_e5m2fnuz": (0.26, 0.02),
}


@dataclass(frozen=True)
class Tolerance:
    """The rule `|got - expected| <= atol + rtol * |expected|` for each element, as in `numpy.allclose`.

    If all elements of an output are small, `atol` is `MAX_ATOL_PART` of the largest.
    """

    rtol: float = 1e-3
    atol: float = 1e-5

    def at_least(self, dtype: str) -> Tolerance:
        """Return this tolerance, or the one that the dtype's precision allows if that is larger."""
        rtol, atol = HALF_TOLERANCES.get(dtype, (0.0, 0.0))
        return Tolerance(max(self.rtol, rtol), max(self.atol, atol))

    def below(self, expected: NDArray[Any]) -> float:
        """Return the tolerance for one output: `atol` is limited, since otherwise any small output would pass."""
        finite = np.abs(expected[np.isfinite(expected)])
        largest = float(finite.max()) if finite.size else 0.0
        return min(self.atol, MAX_ATOL_PART * largest) if largest else self.atol

    def __str__(self) -> str:
        return f"rtol {self.rtol:g}, atol {self.atol:g}"


@dataclass(frozen=True)
class Difference:
    """The result of comparing one output.

    Attributes:
        absolute: the largest difference over elements that are finite on both sides (0 if there are none).
        relative: the largest such difference as a part of the expected element, over those that are not 0; None if
            only elements differ that should be 0.
        why: the difference in words; empty if there is none.
    """

    absolute: float = 0.0
    relative: float | None = 0.0
    why: str = ""


def describe(value: Any) -> str:
    """Return dtype and shape of a value as text: `float32 [2, 10]`."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"map of {len(value)}"
    if isinstance(value, list):
        inner = sorted({describe(v) for v in value})
        return f"list of {len(value)}" + (f": {inner[0]}" if len(inner) == 1 else "")
    kind = "string" if value.dtype == object or value.dtype.kind in "US" else str(value.dtype)
    return f"{kind} {list(value.shape)}"


def compare(
    expected: Any, got: Any, tolerance: Tolerance, *, values: bool = True, slack: NDArray[Any] | None = None
) -> Difference:
    """Compare two ONNX values (see `convert`): floating point by tolerance, NaN equal to NaN, everything else exactly.

    With `values=False` only shape and dtype count. `slack` is added to the allowed difference of each element.
    """
    if isinstance(expected, dict) or isinstance(got, dict):
        return _maps(expected, got, tolerance, values)
    if expected is None or got is None or isinstance(expected, list) or isinstance(got, list):
        return _nested(expected, got, tolerance, values)
    expected, got = widened(expected), widened(got)
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return Difference(why=f"{describe(got)} instead of {describe(expected)}")
    if not values or not expected.size:
        return Difference()
    if expected.dtype.kind in "biuOUS":
        return _exact(expected, got, slack)
    return _floats(expected, got, tolerance.at_least(str(expected.dtype)), slack)


def _exact(expected: NDArray[Any], got: NDArray[Any], slack: NDArray[Any] | None) -> Difference:
    wrong = np.asarray(expected != got)
    if slack is not None:
        wrong &= np.abs(expected.astype(np.float64) - got.astype(np.float64)) > slack
    if not wrong.any():
        return Difference()
    largest = _largest(np.abs(expected.astype(object) - got.astype(object))) if expected.dtype.kind in "iu" else 0.0
    return Difference(largest, 0.0, _worst(wrong, expected, got))


def _maps(expected: Any, got: Any, tolerance: Tolerance, values: bool) -> Difference:
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        return _nested(list(expected.values()), [got[key] for key in expected], tolerance, values)
    return Difference(why=f"{describe(got)} instead of {describe(expected)}, or other keys")


def _nested(expected: Any, got: Any, tolerance: Tolerance, values: bool) -> Difference:
    if expected is None and got is None:
        return Difference()
    if not (isinstance(expected, list) and isinstance(got, list)) or len(expected) != len(got):
        return Difference(why=f"{describe(got)} instead of {describe(expected)}")
    differences = [compare(e, g, tolerance, values=values) for e, g in zip(expected, got, strict=True)]
    why = next((f"element {i}: {d.why}" for i, d in enumerate(differences) if d.why), "")
    relative = [d.relative for d in differences if d.relative is not None]
    nothing = None if differences and not relative else 0.0
    return Difference(max((d.absolute for d in differences), default=0.0), max(relative, default=nothing), why)


def slack_of(expected: Any, others: list[Any], change: float) -> NDArray[Any] | None:
    """Return the movement of an output when inputs change in their last bits: the largest distance of `others` from it.

    Float elements that move hardly more than the inputs get 0. The inputs changed by the part `change` of themselves.

    Returns None if the values are not comparable arrays, or if they move so much that a wrong answer could pass.
    """
    numbers = [expected, *others]
    if not all(isinstance(v, np.ndarray) and v.dtype.kind in "biufV" and v.shape == expected.shape for v in numbers):
        return None
    with np.errstate(all="ignore"):
        moved = [np.abs(v.astype(np.float64) - expected.astype(np.float64)) for v in others]
    most = np.nan_to_num(np.max(moved, axis=0), nan=0.0, posinf=0.0)
    size = np.nan_to_num(expected.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    amplified = np.where(most > MIN_AMPLIFICATION * change * np.abs(size), SLACK_FACTOR * most, 0.0)
    slack = np.asarray(most if expected.dtype.kind in "biu" else amplified)
    return slack if float((slack**2).sum()) <= (MAX_SLACK_PART**2) * float((size**2).sum()) else None


def _floats(
    expected: NDArray[Any], got: NDArray[Any], tolerance: Tolerance, slack: NDArray[Any] | None = None
) -> Difference:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    with np.errstate(all="ignore"):
        close = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        distance = np.where(finite, np.abs(a - b), 0.0)
        allowed = tolerance.below(a) + tolerance.rtol * np.abs(a) + (0.0 if slack is None else slack)
        close |= finite & (distance <= allowed)
    why = (
        "" if close.all() else _worst(~close, expected, got, np.where(close, -1.0, np.where(finite, distance, np.inf)))
    )
    return Difference(_largest(distance), _relative(distance, a), why)


def _relative(distance: NDArray[Any], expected: NDArray[Any]) -> float | None:
    """Return the largest distance as a part of its element, or None if only elements that should be 0 differ."""
    differs = distance > 0
    of = differs & (expected != 0)
    if not of.any():
        return None if differs.any() else 0.0
    with np.errstate(all="ignore"):
        return _largest(distance[of] / np.abs(expected[of]))


def _largest(array: NDArray[Any]) -> float:
    return float(array.max())


def _worst(wrong: NDArray[Any], expected: NDArray[Any], got: NDArray[Any], by: NDArray[Any] | None = None) -> str:
    """Describe how many elements differ, and the worst of them."""
    flat = int(np.argmax(wrong if by is None else by))
    where = ", ".join(str(int(i)) for i in np.unravel_index(flat, wrong.shape))
    values = f"{_shown(got.reshape(-1)[flat])} instead of {_shown(expected.reshape(-1)[flat])}"
    return f"{int(wrong.sum()):,} of {counted(wrong.size, 'element')} differ, most at [{where}]: {values}"


def _shown(element: Any) -> str:
    return ascii(element)[:80] if isinstance(element, str) else str(element)


# The best constant differs from the output by the standard deviation. A limit below this part of it still exposes one.
TELLING_PART = 0.7
WAY_OUT = "compare on inputs like those that the file was quantised with: onnxgen verify --inputs FILE.npz"


@dataclass(frozen=True)
class _Seen:
    """One output in one run: number of elements, mean, standard deviation, and the allowed difference."""

    count: int
    mean: float
    deviation: float
    limit: float


@dataclass
class Telling:
    """Statistics of each output that may differ by more than a tolerance.

    One conclusive run is enough. Runs may also be conclusive together: an output of one element, or of one saturated
    value, varies only from run to run.
    """

    seen: dict[str, list[_Seen]] = field(default_factory=dict)

    def add(self, name: str, expected: NDArray[Any], limit: float) -> None:
        finite = expected[np.isfinite(expected)].astype(np.float64)
        if finite.size:
            seen = _Seen(finite.size, float(finite.mean()), float(finite.std()), limit)
            self.seen.setdefault(printable(name), []).append(seen)

    def untold(self) -> dict[str, str]:
        """Return the outputs for which a wrong module could pass, with the reason."""
        return {name: _why(runs) for name, runs in self.seen.items() if not _tells(runs)}


def _tells(runs: list[_Seen]) -> bool:
    """Return True if runs are conclusive. With a limit of 0 they always are, since the comparison is exact."""
    alone = any(run.limit == 0 or run.limit < TELLING_PART * run.deviation for run in runs)
    return alone or max(run.limit for run in runs) < TELLING_PART * _deviation(runs)


def _deviation(runs: list[_Seen]) -> float:
    """Return the standard deviation of the elements of all runs together."""
    count = sum(run.count for run in runs)
    mean = sum(run.count * run.mean for run in runs) / count
    return math.sqrt(sum(run.count * (run.deviation**2 + (run.mean - mean) ** 2) for run in runs) / count)


def _why(runs: list[_Seen]) -> str:
    limit, varies = max(run.limit for run in runs), _deviation(runs)
    return (
        f"rounding may change this output by {limit:.3g} in root mean square, but on these inputs the output varies by "
        f"only {varies:.3g}, so a wrong module could pass -> {WAY_OUT}"
    )
