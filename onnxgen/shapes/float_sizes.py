"""Sizes that a graph scales in float32: Shape -> Gather -> Cast -> Mul by a constant -> Floor -> Cast back.

Exporters write `interpolate(scale_factor=...)` like that. Between the casts a value holds `Scaled` elements. They exist
only in this module: an `Info` has elements of a float tensor only if they are plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import card, is_a
from onnxgen.graph.traits import JOINS, STRIDES, VIEW
from onnxgen.shapes.dims import Dim, Sym, bound, dim_max, nonnegative, scale_size
from onnxgen.shapes.elements import Operation, operation_of
from onnxgen.shapes.info import NONSENSE, Array, Info, NodeFacts, Unknown, integer, numbers_if_possible

FLOAT = ir.DataType.FLOAT
EXACT = 2.0**24  # float32 holds every integer up to here


@dataclass(frozen=True)
class Scaled:
    """`float32(size)`, its product with a `factor` >= 0, or the floor of either, since a cast to integers floors."""

    size: Dim
    factor: float | None = None


class FloatSizes:
    """The float tensors of one propagation whose elements are scaled sizes."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Array] = {}

    def follow(self, n: NodeFacts, outputs: list[Info]) -> list[Info]:
        """Follow scaled sizes through one node. Returns `outputs`, with elements where sizes become integers again."""
        cast = n.op == "Cast" and bool(outputs) and outputs[0].data is None
        if not cast and self._known.keys().isdisjoint(n.node.inputs):
            return outputs
        try:
            if cast:
                return self._cast(n, outputs)
            if n.op == "Range":
                return self._range(n, outputs)
            if n.op == "Mul":
                self._known[n.node.outputs[0]] = self._scaled(n)
            elif n.op == "Floor" and (floored := self._input(n, 0)) is not None:
                self._known[n.node.outputs[0]] = floored
            elif is_a(n.node, VIEW, STRIDES, JOINS) and (arrange := operation_of(card("", n.op))) is not None:
                self._arranged(n, arrange)
        except NONSENSE:
            pass
        return outputs

    def _input(self, n: NodeFacts, i: int) -> Array | None:
        value = n.node.inputs[i]
        return None if value is None else self._known.get(value)

    def _cast(self, n: NodeFacts, outputs: list[Info]) -> list[Info]:
        data, to = n.input(0).data, outputs[0].dtype
        if to == FLOAT and integer(n.dtype(0)) and data is not None and all(map(one_axis, data.ravel().tolist())):
            self._known[n.node.outputs[0]] = _each(lambda dim: Scaled(dim), data)
        known = self._input(n, 0)
        if known is None:
            return outputs
        if to == FLOAT:
            self._known[n.node.outputs[0]] = known
        if to in (ir.DataType.INT32, ir.DataType.INT64):  # the cast truncates, which is floor for numbers >= 0
            sizes = _each(lambda e: e.size if e.factor is None else scale_size(e.size, e.factor), known)
            return [replace(outputs[0], shape=sizes.shape, data=numbers_if_possible(sizes, to))]
        return outputs

    def _range(self, n: NodeFacts, outputs: list[Info]) -> list[Info]:
        """Count the elements of a range of floats that goes from one size to another in steps of 1."""
        first, last, step = (self._whole(n, i) for i in range(3))
        if step != 1:
            raise Unknown("other steps, which round")
        return [replace(outputs[0], shape=(dim_max(last - first, 0),))]

    def _whole(self, n: NodeFacts, i: int) -> Dim:
        """Return input i, if it is a size or a whole number."""
        known, data = self._input(n, i), n.input(i).constant
        one: Any = known.flat[0].size if known is not None and known.flat[0].factor is None else None
        if one is None and data is not None and data.size == 1 and float(data.flat[0]).is_integer():
            one = int(data.flat[0])
        if one is None:
            raise Unknown("a float that is no size")
        return one  # type: ignore[no-any-return]

    def _scaled(self, n: NodeFacts) -> Array:
        first, second = self._input(n, 0), self._input(n, 1)
        known, factor = (first, n.input(1)) if first is not None else (second, n.input(0))
        numbers: Array | None = factor.data
        if known is None or numbers is None or numbers.dtype != np.float32 or (numbers < 0).any():
            raise Unknown("the factor")
        if any(e.factor is not None for e in known.flat):
            raise Unknown("two factors: each product is rounded")
        return np.asarray(np.frompyfunc(lambda e, f: Scaled(e.size, float(f)), 2, 1)(known, numbers), object)

    def _arranged(self, n: NodeFacts, arrange: Operation) -> None:
        arrays = [
            known if (known := self._input(n, i)) is not None else n.data(i) for i in range(len(n.inputs)) if n.has(i)
        ]
        if n.op == "Concat" and len(arrays) != sum(self._input(n, i) is not None for i in range(len(n.inputs))):
            raise Unknown("a plain number among sizes")
        for value, array in zip(n.node.outputs, arrange(n, *arrays), strict=False):
            box = np.empty((), object)
            box[()] = array
            self._known[value] = array if isinstance(array, np.ndarray) else box


def one_axis(size: Dim) -> bool:
    """Return True if a size is that of one axis, not a product (below 2**24, so it is exact in float32).

    It may be a small multiple: `bound` counts on axes 16 times as long as the longest that tensors have.
    """
    terms = size.terms if isinstance(size, Sym) else ()
    is_linear = all(sum(power for _, power in monomial) < 2 for monomial, _ in terms)
    return nonnegative(size) and is_linear and bound(size) <= 16 * EXACT


def _each(function: object, array: Array) -> Array:
    return np.asarray(np.frompyfunc(function, 1, 1)(array.astype(object)), object)  # type: ignore[call-overload]
