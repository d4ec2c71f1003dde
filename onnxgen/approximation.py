"""How near a module of floats comes to the quantised file that it was generated from.

What lies between two integers a file and fake quantisation may round to either: one whole step off. Over n roundings
(QuantizeLinear, say) such errors add up like a random walk's. A *step* is the range of the file's output divided by
2 ** bits - 1, or its own if it was just quantised. So what fake quantisation computes (`qat`) may differ, in root mean
square, by no more than a step times sqrt(n + 1), and no element by more than six times that.

Without it (`float`) the module also lacks what the file saturates, and by how much that changes an output no scale
tells. There an output that differs by more than half of its own standard deviation is another function; anything less
is reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = "quantized"  # in the sidecar's metadata, and in `model.meta`
SIGMAS = 6.0


@dataclass(frozen=True)
class Approximation:
    """What a generation made of a quantised file.

    Attributes:
        mode: the option `quantized`.
        roundings: how often the file rounds values to integers.
        bits: of the coarsest of these.
        outputs: scale and zero point of outputs that are integers in the file and floats in the module.
        inputs: the range outside of which the file saturates inputs that it quantises at once.
        ranges: the range that the file saturates an output to that it has just dequantised.
    """

    mode: str
    roundings: int
    bits: int
    outputs: Mapping[str, tuple[float, float]]
    inputs: Mapping[str, tuple[float, float]]
    ranges: Mapping[str, tuple[float, float]]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Approximation:
        """Raises `ValueError` for anything that `to_json` did not write."""
        try:
            found = json.loads(text)
            pairs = [
                {str(k): (float(a), float(b)) for k, (a, b) in found[key].items()}
                for key in ("outputs", "inputs", "ranges")
            ]
            return cls(str(found["mode"]), int(found["roundings"]), int(found["bits"]), *pairs)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None

    def floats(self, name: str, value: Any) -> Any:
        """What the file's own output stands for."""
        if name not in self.outputs or not isinstance(value, np.ndarray):
            return value
        scale, zero = self.outputs[name]
        return ((value.astype(np.float64) - zero) * scale).astype(np.float32)

    def within(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs that the file does not saturate."""
        return {k: np.clip(v, *self.inputs[k]).astype(v.dtype) if k in self.inputs else v for k, v in feeds.items()}

    def saturated(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        """An output of floats within what the file can say of it. Fake quantisation sees to that, by its own scales."""
        if self.mode != "float" or name not in self.ranges:
            return value
        clipped: NDArray[Any] = np.clip(value, *self.ranges[name]).astype(value.dtype)
        return clipped

    def allowed(self, name: str, expected: NDArray[Any]) -> float:
        """The root mean square that an output may differ by."""
        finite = expected[np.isfinite(expected)].astype(np.float64)
        if not finite.size:
            return 0.0
        low, high = self.ranges.get(name, (0.0, 0.0))
        step = max(float(finite.max() - finite.min()), high - low) / (2**self.bits - 1)
        by_rounding: float = step * math.sqrt(self.roundings + 1)
        return max(by_rounding, 0.5 * float(finite.std())) if self.mode == "float" else by_rounding

    def problem(self, name: str, expected: NDArray[Any], got: NDArray[Any], floor: float) -> str:
        """What is different, in words; "" if nothing is. `floor`: what may differ in any case."""
        distance = np.abs(expected.astype(np.float64) - got.astype(np.float64))
        distance = np.where(np.isnan(expected) & np.isnan(got), 0.0, distance)
        rms, largest, most = float(np.sqrt((distance**2).mean())), float(distance.max()), self.allowed(name, expected)
        if rms <= most + floor and largest <= SIGMAS * most + floor:
            return ""
        return f"differs by {rms:.3g} in root mean square and {largest:.3g} at most; quantising explains {most:.3g}"

    def __str__(self) -> str:
        if self.mode == "float":
            return "half the standard deviation of each output, as floats are not what integers saturate and round"
        return f"what {self.roundings} roundings to {self.bits} bits explain"
