"""The allowed distance of a float module from the quantised file that it was generated from.

The file and fake quantisation may round a value between two integers differently: the results differ by a whole step.
Over n roundings (QuantizeLinear, say) such errors add up like a random walk. A *step* is the range of the file's output
divided by 2 ** bits - 1; if the output was just dequantised, the range is that of its integers. So the result of fake
quantisation (`qat`) may differ by a step times sqrt(n + 1) in root mean square, and each element by six times that.

Without fake quantisation (`float`) the module does not saturate as the file does. Scales do not show how much that
changes an output. There an output is another function if it differs by more than a part (`MAX_SATURATED_PART`) of its
own standard deviation. The same holds if it is smaller than the file's by a factor (`MAX_MISSING_PART`): saturation can
only make the file's output smaller.

The comparison needs inputs that span many of the file's integers. If the file rounds an input to a few steps, any
module lies within that rounding. So the inputs fill the range that the file quantises (`inputs`). If the comparison
still cannot tell modules apart, it does not count as agreement (`onnxgen.verify.telling`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.built import Between, Metric
from onnxgen.errors import counted

KEY = "quantized"  # in the sidecar's metadata
MAX_SIGMAS = 6.0
MAX_SATURATED_PART = 0.5  # part of an output's standard deviation that saturation in the file may change
MAX_MISSING_PART = 0.2  # part of the file's output that may be missing; correct modules lacked at most 0.01
_Two: TypeAlias = Annotated[tuple[Metric, Metric], Between(2, 2)]


@dataclass(frozen=True)
class Distance:
    """The difference between an output of the module and that of the file.

    Attributes:
        rms, largest: the difference in root mean square, and at most.
        limit: of `rms`.
        missing: the part of the file's output that the module's lacks everywhere, beyond rounding; 0 if none.
    """

    rms: float
    largest: float
    limit: float
    missing: float = 0.0

    def problem(self, floor: float) -> str:
        """Describe the difference, or return "" if it is allowed. `floor`: a difference that is always allowed."""
        if self.rms <= self.limit + floor and self.largest <= MAX_SIGMAS * self.limit + floor:
            return ""
        found = f"{self.rms:.3g} in root mean square and {self.largest:.3g} at most"
        return f"differs by {found}; quantising explains {self.limit:.3g}"

    def too_small(self, floor: float) -> str:
        """Describe an output that is too small, or return "". Valid only for the file's own weights."""
        if self.missing <= MAX_MISSING_PART or self.rms <= floor:
            return ""
        return f"is {1 - self.missing:.3g} times the file's result; saturation in the file can only make it larger"


@dataclass(frozen=True)
class Approximation:
    """The record of how a generation approximates a quantised file.

    Attributes:
        mode: the option `quantized`.
        roundings: the number of times that the file rounds values to integers.
        bits: of the coarsest of these.
        outputs: scale and zero point of outputs that are integers in the file and floats in the module.
        inputs: the range of each input that the file quantises at once or after views. It saturates values outside.
        ranges: the range to which the file saturates each output that it has just dequantised.
        rectified: outputs that the module itself keeps from being negative (by a ReLU, say).
    """

    mode: str
    roundings: int
    bits: int
    outputs: Mapping[str, _Two]
    inputs: Mapping[str, _Two]
    ranges: Mapping[str, _Two]
    rectified: tuple[str, ...] = ()

    def anew(self) -> Approximation:
        """Return the approximation for a file exported from the module, which lacks the original's saturation."""
        return replace(self, ranges={}) if self.mode == "float" else self

    def floats(self, name: str, value: Any) -> Any:
        """Return the float values that an integer output of the file represents."""
        if name not in self.outputs or not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            return value
        scale, zero = self.outputs[name]
        return ((value.astype(np.float64) - zero) * scale).astype(np.float32)

    def within(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Clip inputs to the ranges in which the file does not saturate them."""
        return {k: np.clip(v, *self.inputs[k]).astype(v.dtype) if k in self.inputs else v for k, v in feeds.items()}

    def saturated(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """Clip a float output to the range that the file can represent. Fake quantisation clips by its own scales, so
        its output is returned unchanged.

        Outputs in `rectified` are not clipped from below: else the file's range would hide a missing ReLU.
        """
        if self.mode != "float" or name not in self.ranges:
            return value
        low, high = self.ranges[name]
        clipped: NDArray[Any] = np.clip(value, None if name in self.rectified else low, high).astype(value.dtype)
        return clipped

    def rounding(self, name: str, expected: NDArray[Any]) -> float:
        """Return the difference that rounding explains, as a root mean square."""
        finite = expected[np.isfinite(expected)].astype(np.float64)
        if not finite.size:
            return 0.0
        low, high = self.ranges.get(name, (0.0, 0.0))
        step = max(float(finite.max() - finite.min()), high - low) / (2**self.bits - 1)
        return float(step * math.sqrt(self.roundings + 1))

    def allowed(self, name: str, expected: NDArray[Any]) -> float:
        """Return the difference that an output may have, as a root mean square."""
        by_rounding = self.rounding(name, expected)
        finite = expected[np.isfinite(expected)].astype(np.float64)
        if self.mode != "float" or not finite.size:
            return by_rounding
        return max(by_rounding, MAX_SATURATED_PART * float(finite.std()))

    def missing(self, name: str, expected: NDArray[Any], got: NDArray[Any]) -> float:
        """Return the part of the file's output that the module's lacks (least squares); 0 if rounding explains it."""
        both = np.isfinite(expected) & np.isfinite(got)
        a, b = (v[both].astype(np.float64) for v in (expected, got))
        if self.mode != "float" or not a.size or not a.std():
            return 0.0
        part = 1.0 - float(((a - a.mean()) * (b - b.mean())).mean() / a.var())
        return part if part * a.std() > self.rounding(name, expected) else 0.0

    def distance(self, name: str, expected: NDArray[Any], got: NDArray[Any]) -> Distance:
        """Compare an output with that of the file. Neither may be empty."""
        distance = np.abs(expected.astype(np.float64) - got.astype(np.float64))
        distance = np.where(np.isnan(expected) & np.isnan(got), 0.0, distance)
        rms, largest = float(np.sqrt((distance**2).mean())), float(distance.max())
        return Distance(rms, largest, self.allowed(name, expected), self.missing(name, expected, got))

    def __str__(self) -> str:
        explain = "explains" if self.roundings == 1 else "explain"
        rounding = f"a root mean square of what {counted(self.roundings, 'rounding')} to {self.bits} bits {explain}"
        if self.mode != "float":
            return rounding
        return f"{rounding}, or of {MAX_SATURATED_PART:g} of an output's standard deviation where that is more"
