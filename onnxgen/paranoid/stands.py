"""Compute what a quantised graph represents, node by node: the numbers behind its integers, without rounding.

`QuantizeLinear` is `round(x / scale) + zero`. Here it is `bend(x / scale) + zero`, in float64:

- For a graph of floats, `bend` is the identity. Nothing saturates, unless that is a ReLU.
- For fake quantisation, `bend` is a line with a wave, which goes through every whole number, and it saturates. A wrong
  scale or zero point, or a lost rounding, changes the result as it changes rounded numbers. But `bend` is continuous,
  so two ways to compute one number never end in neighbouring steps.

Operators that move integers move these numbers. Sums and products are computed with them. Other operators on integers
get rounded ones. This is independent of the pass: both graphs, before and after, are computed in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import card, is_a, known
from onnxgen.graph.traits import (
    ADDS,
    AVERAGES,
    MOVES,
    NORM,
    PICKS,
    PRODUCT,
    RESAMPLES,
    SAMPLES,
    SCALES,
    VIEW,
    WHOLE,
)
from onnxgen.paranoid.claims import Broken, Untold, uses
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.run import Side, Values
from onnxgen.paranoid.single import NARROW, Single
from onnxgen.shapes import own

WAVE = 0.08  # part of a step: far above float64 rounding, with a slope between 1/2 and 3/2
SIX, NEAR_SIX = 6.0, 6e-3  # the bound of ReLU6, and its tolerance: 255 steps of a stored scale seldom end exactly at 6
FUSES = (PRODUCT, ADDS, SCALES, NORM)  # quantisers fuse a ReLU into these
LIKE = ir.DataType.UINT8


def _fuses(op: str) -> bool:
    return any(not card(domain, op).traits.isdisjoint(FUSES) for domain in ("", "com.microsoft"))


def _is_single(op: str) -> bool:
    """Return True if onnxruntime has a kernel for float32 alone, and onnx's evaluator is slow at it."""
    traits = card("", op).traits
    return op == "LRN" or RESAMPLES in traits or SAMPLES in traits and not traits.isdisjoint((PRODUCT, AVERAGES))


@dataclass(frozen=True)
class Grid:
    """The grid of a quantiser: scale and zero point (as bytes), axis, and range.

    One number for all has no axis. `stored`: whether the scale is no result of the network's own.
    """

    scale: bytes
    zero: bytes
    axis: int
    block: int
    low: float
    high: float
    stored: bool = field(default=True, compare=False)

    @property
    def is_single(self) -> bool:
        return len(self.scale) == 8

    def real(self, steps: Any) -> Any:
        """Return the numbers that steps of a single scale represent."""
        zero = np.frombuffer(self.zero)
        return (steps - (zero[0] if zero.size else 0.0)) * np.frombuffer(self.scale)[0]


@dataclass(frozen=True)
class Kind:
    """The type and grid of a value's numbers. The integer type is None for floats."""

    dtype: ir.DataType | None
    grid: Grid | None = None

    @property
    def single_grid(self) -> Grid | None:
        """The grid, if it is one for all elements."""
        return self.grid if self.grid is not None and self.grid.is_single else None


@dataclass(frozen=True)
class Scales:
    """Scale and zero point as arrays that broadcast to a tensor, and their grid."""

    scale: Any
    zero: Any
    grid: Grid


class Stands(Side):
    """Computes what a whole graph represents.

    Args:
        rounds: True for fake quantisation, False for a graph of floats.

    Attributes:
        values: all values that could be computed.
        why: the reasons why other values could not.
        floats: for each stored tensor that was dequantised by stored scales, all floats that it represents.
        needless: names of operators that dequantise values of the same grid, or stored values.
    """

    def __init__(self, picture: Picture, single: Single, sizes: Mapping[str, int], rounds: bool) -> None:
        super().__init__(picture, single, sizes, wide=True)
        self.rounds = rounds
        self.kinds: dict[ir.Value | None, Kind] = {}
        self.values: Values = {}
        self.why: dict[ir.Value, Untold] = {}
        self.floats: dict[ir.Value, list[Any]] = {}
        self.needless: list[str] = []

    def compute(self, drawn: Mapping[ir.Value, Any]) -> None:
        """Compute every value of the main graph, as far as possible."""
        graph = next(iter(self.picture.graphs))
        self.values.update(drawn)
        for step in self._live(graph):
            try:
                for value in uses(self.picture, step):
                    self._need(value)
                with np.errstate(all="ignore"):
                    self._steps([step], self.values)
            except Untold as error:
                self.why.update(dict.fromkeys(step.outputs, error))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # shapes do not fit
                self.why.update(dict.fromkeys(step.outputs, Broken(f"{step.op}: {error}")))
        for value in self.picture.graphs[graph][1]:
            if value not in self.values and value not in self.why:
                self._need(value)

    def _live(self, graph: ir.Graph) -> list[Made]:
        """Return the nodes of a graph that its outputs depend on."""
        wanted, steps = set(self.picture.graphs[graph][1]), []
        for step in reversed(self.picture.members.get(graph, [])):
            if not wanted.isdisjoint(step.outputs):
                wanted.update(uses(self.picture, step))
                steps.append(step)
        return steps[::-1]

    def _need(self, value: ir.Value | None) -> None:
        if value in self.why:
            raise self.why[value]
        if value is not None and value not in self.values:
            if value not in self.picture.stored and not self.picture.is_known(value):
                raise Untold(f"{value.name} has no elements")
            self.values[value] = self.constant(value)

    def body(self, graph: ir.Graph, args: Sequence[Any], values: Values) -> list[Any]:
        """Return the outputs of a subgraph; integers are rounded."""
        results = super().body(graph, args, values)
        return [self._whole(v, self.kinds.get(o)) for o, v in zip(self.picture.graphs[graph][1], results)]

    def _made(self, step: Made, inputs: list[Any], values: Values) -> Sequence[Any]:
        for value in step.outputs:
            self.kinds.pop(value, None)
        rule = STANDS_RULES.get(step.op) if step.domain in ("", "com.microsoft", DOMAIN) else None
        if rule is not None:
            return rule(self, step, inputs)
        kinds = [self.kinds.get(v) for v in step.inputs]
        if step.domain == "" and any(kinds) and not step.bodies:
            outputs = self._of_kinds(step, inputs, kinds)
            if outputs is not None:
                return outputs
        whole = [self._whole(v, kind) for v, kind in zip(inputs, kinds)]
        return self.plain(step, whole, values)

    def _of_kinds(self, step: Made, inputs: list[Any], kinds: list[Kind | None]) -> Sequence[Any] | None:
        """Compute a node that keeps the kind of its inputs, or sets another one; None if it does neither."""
        if carries(step):
            interpolates = step.op == "Resize" and step.attribute("mode", "nearest") != "nearest"
            return None if interpolates else self._carried(step, inputs, kinds)
        integers = next((kind.dtype for kind in kinds if kind is not None and kind.dtype), None)
        if is_a(step.node, WHOLE) and integers is not None:
            self.kinds[step.outputs[0]] = Kind(integers)
            return self.plain(step, [v if v is None else v.astype(np.float64) for v in inputs])
        if step.op == "Cast" and kinds[0] is not None:
            return self._cast(step, inputs[0], kinds[0])
        return None

    def plain(self, step: Made, inputs: list[Any], values: Values | None = None) -> Sequence[Any]:
        """Compute a float node: in float64, or in float32 if it has no other kernel."""
        if step.domain == "" and not _is_single(step.op) or step.domain == DOMAIN:
            return super()._made(step, inputs, {} if values is None else values)
        narrow = [v.astype(np.float32) if getattr(v, "dtype", None) == np.float64 else v for v in inputs]
        return [self.widened(v) if isinstance(v, np.ndarray) else v for v in self.single.run(step, narrow, False)]

    def _carried(self, step: Made, inputs: list[Any], kinds: list[Kind | None]) -> Sequence[Any]:
        """Compute a node that moves elements or takes the largest: its output has the grid of its first data input."""
        places = known(step.node).data
        data = [i for i, v in enumerate(inputs) if i in places and v is not None]
        taken = [kinds[i] for i in data]
        integers = next((kind.dtype for kind in taken if kind is not None and kind.dtype is not None), None)
        grid = None if taken[0] is None else taken[0].single_grid
        operands = [v.astype(np.float64) if i in data and integers is not None else v for i, v in enumerate(inputs)]
        carriers = step.outputs[:1] if step.op == "MaxPool" else step.outputs  # the others are indices
        self.kinds.update(dict.fromkeys(carriers, Kind(integers, grid)))
        if _is_single(step.op):  # which elements these are is exact in float32, other than steps of a wave
            numbers = np.arange(operands[0].size, dtype=np.float64).reshape(operands[0].shape)
            return [operands[0].reshape(-1)[self.plain(step, [numbers, *operands[1:]])[0].astype(np.int64)]]
        return self.plain(step, operands)

    def _cast(self, step: Made, x: Any, kind: Kind) -> list[Any]:
        wanted = ir.DataType(int(step.attributes["to"].value))
        if wanted.is_floating_point():
            self.kinds[step.outputs[0]] = Kind(None, kind.grid if kind.dtype is None else None)
            return [x]
        if kind.dtype is None or not wanted.is_integer():
            return list(self.plain(step, [self._whole(x, kind)]))
        self.kinds[step.outputs[0]] = Kind(wanted)
        return [x]

    def _whole(self, x: Any, kind: Kind | None) -> Any:
        """Return integers as they are in the file: rounded, and within their range."""
        if kind is None or kind.dtype is None or not isinstance(x, np.ndarray):
            return x
        if not kind.dtype.is_integer():
            raise Untold(f"{kind.dtype.name} that something computes with")
        return np.clip(np.rint(x), float(kind.dtype.min), float(kind.dtype.max)).astype(kind.dtype.numpy())

    # ---- quantising and its inverse --------------------------------------------------------------------------------

    def is_stored(self, value: ir.Value | None) -> bool:
        """Return True if a value does not depend on the network's inputs."""
        if value is None or value in self.picture.stored or self.picture.is_known(value):
            return True
        maker = self.picture.maker.get(value)
        op = "" if maker is None else maker.op
        return op == "Constant" or maker is not None and op == "Mul" and all(map(self.is_stored, maker.inputs))

    def scales(self, x: Any, scale: Any, zero: Any, dtype: ir.DataType, axis: int = 0, block: int = 0) -> Scales:
        """Return scale and zero point of a tensor."""
        wide, shift = (
            np.asarray(v if v is not None else 0).astype(np.float64) for v in (scale, zero)
        )  # one of them may have several scales, the other one
        single = wide.size == 1 and shift.size == 1
        axis, block = (0, 0) if single else (axis % max(1, x.ndim), block)
        zeros = shift.tobytes() if shift.any() else b""
        limits = (float(dtype.min), float(dtype.max))
        grid = Grid(wide.tobytes(), zeros, axis, block, *limits)
        return Scales(own.spread(wide, x, axis, block), own.spread(shift, x, axis, block), grid)

    def quantised(
        self, output: ir.Value, x: Any, scales: Scales, dtype: ir.DataType, was: Grid | None, maker: str, stored: bool
    ) -> Any:
        """Return the steps of quantised floats. `maker`: the operator that computed them, "" if unknown."""
        self.kinds[output] = Kind(dtype, replace(scales.grid, stored=stored))
        if self.rounds:
            return self.stepped(x, scales, dtype.is_floating_point() or was == scales.grid)
        steps = x / scales.scale + scales.zero
        grid = scales.grid
        zero = float(scales.zero) if np.ndim(scales.zero) == 0 else np.nan
        if dtype.is_floating_point() or not stored or not grid.is_single or grid.low != zero or not _fuses(maker):
            return steps
        if abs((grid.high - zero) * float(scales.scale) - SIX) >= NEAR_SIX:
            return np.maximum(steps, zero)
        if np.min(x, initial=0) >= 0 and np.max(x, initial=0) > SIX:
            raise Untold("a ReLU6 of what may never be negative")
        return np.clip(steps, zero, zero + SIX / scales.scale)

    def stepped(self, x: Any, scales: Scales, is_rounded: bool) -> Any:
        """Return steps with a wave between whole ones, saturated; without the wave if all are whole already."""
        steps = np.divide(x, scales.scale, where=scales.scale != 0, out=np.zeros(np.shape(x)))  # a scale of 0 gives 0
        if not is_rounded:
            turn = 2 * np.pi * steps  # the wave moves every simple fraction of a step
            steps = steps - WAVE * (np.sin(turn) + (1 - np.cos(turn)) / 2)
        return np.clip(steps + scales.zero, scales.grid.low, scales.grid.high)

    def maker(self, value: ir.Value | None) -> str:
        """Return the operator that computes a value, looking through reshapes."""
        while value is not None and value in self.picture.maker:
            step = self.picture.maker[value]
            if not is_a(step.node, VIEW):
                return step.op
            value = step.inputs[0]
        return ""

    def dequantised(
        self, step: Made, inputs: list[Any], at: tuple[int, int, int], axis: int = 0, block: int = 0
    ) -> Any:
        """Return an input of a node as floats. `at`: positions of the input, its scale and its zero point."""
        values = [step.input(i) for i in at]
        x, scale, zero = inputs[at[0]], inputs[at[1]], inputs[at[2]] if at[2] < len(inputs) else None
        scales = self.scales(x, scale, zero, LIKE, axis, block)
        floats = (x.astype(np.float64) - scales.zero) * scales.scale
        return self.note(values[0], floats, values[1:])

    def note(self, value: ir.Value | None, floats: Any, by: Sequence[ir.Value | None]) -> Any:
        """Record what a stored tensor represents, if scale and zero point are stored. Returns floats of the scale's
        type.
        """
        if value is None or value in self.kinds or not all(self.is_stored(v) for v in (value, *by)):
            return floats
        tensor = self.picture.stored.get(by[0]) if by[0] is not None else None
        if tensor is not None and int(tensor.dtype) in NARROW:
            floats = floats.astype(tensor.dtype.numpy()).astype(np.float64)
        self.floats.setdefault(value, []).append(floats)
        return floats

    def dtype(self, value: ir.Value | None, x: Any) -> ir.DataType:
        """Return the integer type that a value has in the file."""
        kind = self.kinds.get(value)
        if kind is not None and kind.dtype is not None:
            return kind.dtype
        return LIKE if x is None else ir.DataType.from_numpy(x.dtype)


def carries(step: Made) -> bool:
    """Return True if the results consist of elements of the data, and zeros."""
    return not step.domain and is_a(step.node, MOVES, PICKS, RESAMPLES)


def roots(picture: Picture, value: ir.Value) -> list[ir.Value]:
    """Return the tensors that the elements of a value come from."""
    sources, stack, seen = [], [value], set()
    while stack:
        one = stack.pop()
        maker = picture.maker.get(one)
        if one in seen:
            continue
        seen.add(one)
        if maker is None or not carries(maker):
            sources.append(one)
            continue
        places = known(maker.node).data
        stack += [v for i, v in enumerate(maker.inputs) if i in places and v is not None]
    return sources


Rule = Callable[[Stands, Made, list[Any]], Sequence[Any]]
STANDS_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule for some operators, in any domain."""

    def register(function: Rule) -> Rule:
        STANDS_RULES.update(dict.fromkeys(names, function))
        return function

    return register
