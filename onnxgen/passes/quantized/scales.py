"""The scale, zero point and axis of a QuantizeLinear or DequantizeLinear."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


@dataclass(frozen=True)
class Scaled:
    """The scale of one quantisation.

    Attributes:
        scale, zero: the values. Without a zero point it is 0.
        axis, block: the operator's attributes. They only matter if the scale has several elements.
    """

    scale: ir.Value
    zero: ir.Value | None
    axis: int
    block: int

    @classmethod
    def of(cls, node: ir.Node) -> Scaled:
        scale = node.inputs[1]
        assert scale is not None
        axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
        return cls(scale, input_at(node, 2), axis, block)

    @property
    def is_single(self) -> bool:
        """Return True if one number scales the whole tensor."""
        return elements(self.scale) == 1

    @property
    def numbers(self) -> tuple[float, float] | None:
        """Return the first elements of scale and zero point, or None if one of them is not stored."""
        scale, zero = stored(self.scale), stored(self.zero)
        if scale is None or (zero is None and self.zero is not None):
            return None
        return float(scale.numpy().reshape(-1)[0]), 0.0 if zero is None else float(zero.numpy().reshape(-1)[0])

    def equals(self, other: Scaled) -> bool:
        """Return True if both have the same scale and zero point."""
        if not self.is_single and (self.axis, self.block) != (other.axis, other.block):
            return False
        return same(self.scale, other.scale) and (same(self.zero, other.zero) or is_zero(self.zero, other.zero))


def target_type(quantise: ir.Node) -> ir.DataType:
    """Return the type that a QuantizeLinear rounds to."""
    zero = stored(input_at(quantise, 2))
    return zero.dtype if zero is not None else info(quantise.outputs[0]).dtype or ir.DataType.UINT8


def factors(scale: ir.Value) -> list[ir.Value] | None:
    """Return the stored tensors whose product is a scale, or None if it is computed otherwise."""
    if stored(scale) is not None:
        return [scale]
    node = scale.producer()
    if node is None or node.op_type != "Mul" or node.domain != "":
        return None
    found = [factors(v) for v in node.inputs if v is not None]
    return [v for part in found for v in part or ()] if all(found) else None


def elements(scale: ir.Value) -> int | None:
    """Return the number of elements of a stored scale (for a product, of its largest factor). None if it is unknown."""
    found = factors(scale)
    if found is None:
        shape = info(scale).shape
        return 1 if shape is not None and all(d == 1 for d in shape) else None
    return max(math.prod(t.shape.numpy()) for v in found if (t := stored(v)) is not None)


def same(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Return True if two values are the same, or hold the same stored numbers."""
    if a is b:
        return True
    x, y = stored(a), stored(b)
    if x is None or y is None or x.dtype != y.dtype or x.size != y.size:
        return False
    return bool(np.array_equal(x.numpy().reshape(-1), y.numpy().reshape(-1)))


def is_zero(*zeros: ir.Value | None) -> bool:
    """Return True if all of these zero points are 0 or absent."""
    tensors = [stored(zero) for zero in zeros if zero is not None]
    return all(t is not None and not np.asarray(t.numpy(), np.float32).any() for t in tensors)
