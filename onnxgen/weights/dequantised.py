"""Weights that the file stores as integers: their floats, the inverse, and the allowed distance.

    float = (integer - zero point) * scale
    integer = saturate(round(float / scale) + zero point)

A `Dequantised` has the ONNX names of the stored tensors that make one float tensor. `DequantisedTensor` is that tensor
in the rest of the pipeline, lazy like every weight. The sidecar records the `Dequantised`, so that an export can write
integers again.

`Approximation` is the allowed distance of a float module from the quantised file that it was generated from. The file
and fake quantisation may round a value between two integers differently: the results differ by a whole step. Over n
roundings (QuantizeLinear, say) such errors add up like a random walk. A *step* is the range of the file's output
divided by 2 ** bits - 1; if the output was just dequantised, the range is that of its integers. So the result of fake
quantisation (`qat`) may differ by a step times sqrt(n + 1) in root mean square, and each element by six times that.

Without fake quantisation (`float`) the module does not saturate as the file does. Scales do not show how much that
changes an output. There an output is another function if it differs by more than a part (`MAX_SATURATED_PART`) of its
own standard deviation. The same holds if it is smaller than the file's by a factor (`MAX_MISSING_PART`): saturation can
only make the file's output smaller.

The comparison needs inputs that span many of the file's integers. If the file rounds an input to a few steps, any
module lies within that rounding. So the inputs fill the range that the file quantises (`inputs`). If the comparison
still cannot tell modules apart, it does not count as agreement (`onnxgen.verify.compare.Telling`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.built import Between, Metric
from onnxgen.errors import counted
from onnxgen.weights.strided import Array, released

Get = Callable[[str], Array]
LINEAR, BITS, TABLE = "linear", "bits", "table"
MOST_UNDONE = 0.1  # of a change, by rounding to the nearest
# the values of bitsandbytes' 16 codes, by `quant_type`
BNB_TABLES = {
    0: [0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25],  # FP4: the other half is negated
    1: [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Dequantised:
    """The mapping from stored numbers to a float tensor.

    Attributes:
        tensor: the ONNX tensor that holds the numbers.
        scales: the ONNX tensors whose product is the scale.
        zero: the ONNX tensor that is the zero point, "" for none.
        shape: of the float tensor.
        axis: the axis along which the scale has one element for each index.
        block: the number of elements of `axis` that share a scale; 0 where each has its own.
        form: "linear", or onnxruntime's layout of a matrix [rows, columns]: "bits" (MatMulNBits), "table" (MatMulBnb4).
        bits: the bits of one number, if numbers are packed.
        kind: the kind of table: 0 is FP4, 1 is NF4.
        product: for a bias whose scale is stored, the ONNX tensors whose product is that scale.
    """

    tensor: str
    scales: tuple[str, ...]
    zero: str
    shape: tuple[int, ...]
    axis: int = 0
    block: int = 0
    form: str = LINEAR
    bits: int = 0
    kind: int = 0
    product: tuple[str, ...] = ()

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Dequantised:
        """Make one from the result of `as_record`, which may have passed through JSON."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return cls(**fields)

    def as_record(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all ONNX tensors that are involved."""
        return (self.tensor, *self.scales, *([self.zero] if self.zero else []))

    def scale(self, get: Get) -> Array:
        """Return the stored scale, or the product of several stored scales in float32."""
        if len(self.scales) == 1:
            return get(self.scales[0])
        return np.asarray(math.prod((get(name).astype(np.float32) for name in self.scales), start=np.float32(1)))

    def floats(self, get: Get) -> Array:
        """Compute the float tensor as ONNX's DequantizeLinear does. Its dtype is that of the scale."""
        scale = self.scale(get)
        if self.form == TABLE:
            codes, factors = self._codes(get(self.tensor)), self._spread(scale)
            values: Array = (table(self.kind)[codes] * factors).astype(scale.dtype)
            return values
        numbers, zero = self._numbers(get(self.tensor)), self._zero(get)
        wide = np.int64 if numbers.dtype == np.int32 else np.float32
        centred = numbers.astype(wide) - zero.astype(wide)
        wide_scale = self._spread(scale).astype(np.float32)
        return np.asarray(centred.astype(np.float32) * wide_scale, scale.dtype)

    def integers(self, floats: Array, now: Get, before: Get, draw: bool = False) -> Array:
        """Convert trained floats to the stored integers, rounded half to even and saturated.

        Elements that training did not change keep their stored numbers, even if rounding would give others.

        Args:
            floats: the current float tensor, perhaps of a narrower type than it was made in.
            now: returns the current ONNX tensors (scales may be trained, too).
            before: returns the ONNX tensors of the file.
            draw: if rounding to the nearest would undo more than `MOST_UNDONE` of the change, round up or down at
                random, so that each result is right in the mean (Gupta et al. 1502.02551). A change of less than half a
                step in all weights, as adapters make it, would be lost else. The numbers are always the same.

        Raises:
            FloatingPointError: a float is infinite or NaN, so that no integer represents it, or a trained scale is not
                positive.
        """
        stored = before(self.tensor)
        numbers = self._codes(stored) if self.form == TABLE else self._numbers(stored)
        scale, was = self._spread(self.scale(now)), self._spread(self.scale(before))
        if ((scale <= 0) & (scale != was)).any():
            raise FloatingPointError("a trained scale is not positive")
        unchanged = (floats == self.floats(before).astype(floats.dtype)) & (scale == was)
        ratio = floats.astype(np.float32) / np.where(scale == 0, np.float32(1), scale.astype(np.float32))
        if draw and self.form != TABLE and ir.DataType.from_numpy(numbers.dtype).is_integer():
            original = self.floats(before).astype(np.float32) / np.where(scale == 0, np.float32(1), scale)
            ratio = _drawn(ratio, ratio - original, self.tensor)
        if self.form == TABLE:
            rounded = np.abs(ratio[..., None] - table(self.kind)).argmin(-1).astype(np.uint8)
        else:
            rounded = _saturated(np.where(unchanged, np.float32(0), ratio), self._zero(now), numbers.dtype, self.bits)
        return self._packed(np.where(unchanged, numbers, rounded), stored)

    def rescaled(self, floats: Array, get: Get) -> Array | None:
        """Return the stored scale, enlarged where trained floats are beyond its integers, so that none saturates.

        None if all fit, or if the scale stays whatever they are: of packed numbers, of blocks, of a product of scales.
        """
        if self.form != LINEAR or self.block or self.product or len(self.scales) != 1:
            return None
        stored, scale = get(self.tensor), get(self.scales[0])
        kind = ir.DataType.from_numpy(stored.dtype)
        if not kind.is_integer():
            return None
        zero, spread = np.asarray(self._zero(get), np.float64), np.asarray(self._spread(scale), np.float64)
        above, below = float(kind.max) - zero, zero - float(kind.min)  # in steps
        with np.errstate(all="ignore"):
            ratio = floats.astype(np.float64) / spread
            used, room = (np.where(ratio > 0, *pair) for pair in ((ratio / above, ratio / -below), (above, below)))
            over = np.where((np.abs(ratio) > room + 0.5) & np.isfinite(used), used, 1.0)
        axes = tuple(i for i in range(len(self.shape)) if scale.size == 1 or i != self.axis)
        factor = over.max(axes, initial=1.0)
        if (factor == 1).all():
            return None
        return np.asarray(scale.astype(np.float64) * factor.reshape(scale.shape), scale.dtype)

    # ---- numbers as they are stored ------------------------------------------------------------------------------

    def _numbers(self, stored: Array) -> Array:
        if self.form != BITS:
            return stored
        _, digits = self._digits(stored)
        numbers: Array = np.packbits(digits, axis=-1, bitorder="little")[..., 0]
        return numbers[:, : self.shape[1]]

    def _digits(self, stored: Array) -> tuple[Array, Array]:
        """Return the stored bits, and a copy of those of whole numbers as [rows, columns, bits]."""
        stream = np.unpackbits(stored.reshape(self.shape[0], -1, stored.shape[-1]), axis=-1, bitorder="little")
        whole = stream.shape[-1] // self.bits * self.bits
        return stream, stream[..., :whole].reshape(self.shape[0], -1, self.bits).copy()

    def _codes(self, stored: Array) -> Array:
        """Unpack four-bit codes; the high bits of a byte come first."""
        pairs = stored.reshape(-1)
        return np.stack([pairs >> 4, pairs & 15], -1).reshape(-1)[: math.prod(self.shape)].reshape(self.shape)

    def _packed(self, numbers: Array, before: Array) -> Array:
        """Pack numbers in the layout of `before`. Bits of its last bytes beyond the matrix are kept."""
        if self.form == LINEAR:
            return numbers.astype(before.dtype).reshape(before.shape)
        if self.form == TABLE:
            codes = np.stack([before.reshape(-1) >> 4, before.reshape(-1) & 15], -1).reshape(-1)
            codes[: numbers.size] = numbers.reshape(-1)
            return (codes[::2] << 4 | codes[1::2]).astype(before.dtype).reshape(before.shape)
        stream, digits = self._digits(before)
        digits[:, : self.shape[1]] = (numbers[..., None] >> np.arange(self.bits, dtype=np.uint8)) & 1
        whole = stream.shape[-1] // self.bits * self.bits
        stream[..., :whole] = digits.reshape(*stream.shape[:-1], whole)
        return np.packbits(stream, axis=-1, bitorder="little").reshape(before.shape)

    def _zero(self, get: Get) -> Array:
        if not self.zero:
            return np.asarray(2 ** (self.bits - 1) if self.form == BITS else 0, np.float32)
        zero = get(self.zero)
        if self.form == BITS and zero.dtype == np.uint8:
            zero = self.unpacked_zero(zero)
        return self._spread(zero)

    def unpacked_zero(self, zero: Array) -> Array:
        """Unpack zero points that are packed like the matrix, to shape [rows, blocks]."""
        rows = self.shape[0]
        packed = Dequantised("", (), "", (rows, -(-self.shape[1] // self.block)), form=BITS, bits=self.bits)
        return packed._numbers(zero.reshape(rows, 1, -1))

    def _spread(self, values: Array) -> Array:
        """Reshape or repeat a scale or zero point so that it broadcasts to the float tensor."""
        if values.size == 1:
            return values.reshape(())
        if self.form == TABLE:
            return values.reshape(-1).repeat(self.block)[: math.prod(self.shape)].reshape(self.shape)
        if self.form == BITS:
            values = values.reshape(self.shape[0], -1)
        if self.block:
            return values.repeat(self.block, axis=self.axis).take(np.arange(self.shape[self.axis]), axis=self.axis)
        return values.reshape(-1, *[1] * (len(self.shape) - 1 - self.axis))


class DequantisedTensor(ir.LazyTensor):
    """A float tensor whose elements are computed from the stored tensors each time they are requested.

    Attributes:
        how: the mapping from the stored tensors.
        stored: the stored tensors, by the names in `how`.
    """

    def __init__(self, how: Dequantised, stored: Mapping[str, ir.TensorProtocol], name: str) -> None:
        self.how, self.stored = how, stored
        dtype = stored[how.scales[0]].dtype if len(how.scales) == 1 else ir.DataType.FLOAT
        super().__init__(self._compute, dtype, ir.Shape(how.shape), name=name)

    def _compute(self) -> ir.TensorProtocol:
        return ir.tensor(self.how.floats(lambda name: self.stored[name].numpy()))

    def release(self) -> None:
        """Unmap external tensors."""
        for tensor in self.stored.values():
            released(tensor)


def quantised(model: ir.Model, names: Container[str]) -> dict[str, Any]:
    """Return the JSON-able `Dequantised` record of each of these float tensors that the file stores as integers."""
    tensors = [v.const_value for v in model.graph.initializers.values() if v.name in names]
    return {str(t.name): t.how.as_record() for t in tensors if isinstance(t, DequantisedTensor)}


def table(kind: int) -> Array:
    """Return the 16 values that bitsandbytes' codes of a kind stand for, in float32."""
    values = BNB_TABLES[kind]
    return np.array(values if kind else [*values, *(-v for v in values)], np.float32)


class UnpackedTensor(ir.LazyTensor):
    """The zero points of a packed matrix, one per block. The file has no such tensor, so it is not written back."""

    def __init__(self, how: Dequantised, packed: ir.TensorProtocol, name: str) -> None:
        shape = ir.Shape((how.shape[0], -(-how.shape[1] // how.block)))
        super().__init__(
            lambda: ir.tensor(how.unpacked_zero(packed.numpy()).astype(np.uint8)), ir.DataType.UINT8, shape, name=name
        )


def _drawn(ratio: Array, change: Array, name: str) -> Array:
    """Return whole numbers above or below each ratio, drawn by `name`, if rounding to the nearest undoes the change."""
    lost, change = (ratio - np.rint(ratio)).astype(np.float64), change.astype(np.float64)
    if not np.isfinite(ratio).all() or (lost * change).sum() <= MOST_UNDONE * np.square(change).sum():
        return ratio
    drawn = np.random.default_rng(zlib.crc32(name.encode())).random(ratio.shape)
    return np.asarray(np.floor(ratio + drawn), np.float32)


def _saturated(ratio: Array, zero: Array, dtype: np.dtype[Any], bits: int) -> Array:
    """Return `round(ratio) + zero`, clipped to `dtype`, or to unsigned integers if `bits` is not 0."""
    if not np.isfinite(ratio).all():
        raise FloatingPointError("a trained weight is not finite")
    kind = ir.DataType.from_numpy(dtype)
    low, high = (0, 2**bits - 1) if bits else (kind.min, kind.max)
    if kind.is_floating_point():
        return np.asarray(np.clip(ratio + zero.astype(np.float32), float(low), float(high)), dtype)
    shifted = np.rint(ratio.astype(np.float64)) + zero.astype(np.float64)
    return np.asarray(np.clip(shifted, int(low), int(high)).astype(np.int64), dtype)


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
        size = f"{self.rms:.3g} in root mean square and {self.largest:.3g} at most"
        return f"differs by {size}; quantising explains {self.limit:.3g}"

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

    @property
    def is_float(self) -> bool:
        """True if the module has floats for integers, and its outputs are those of the file."""
        return self.mode == "float" and not self.outputs

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
        rounding = f"what {counted(max(self.roundings, 1), 'rounding')} to {self.bits} bits may change"
        if self.mode == "float":
            rounding += f", or {MAX_SATURATED_PART:g} of an output's standard deviation if that is more"
        return f"{rounding} (in root mean square)"
