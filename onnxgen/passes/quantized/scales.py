"""What a QuantizeLinear or DequantizeLinear is asked for: scale, zero point, and along which axis."""

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
        scale, zero: the values; no zero point is 0.
        axis, block: as the operator's attributes; they mean something where the scale has several elements.
    """

    scale: ir.Value
    zero: ir.Value | None
    axis: int
    block: int

    @classmethod
    def of(cls, node: ir.Node) -> Scaled:
        scale = node.inputs[1]
        assert scale is not None
        axis, block = (int(node.attributes[k].value) if k in node.attributes else d for k, d in _ATTRIBUTES)
        return cls(scale, input_at(node, 2), axis, block)

    @property
    def is_single(self) -> bool:
        """Whether one number scales the whole tensor."""
        return elements(self.scale) == 1

    def equals(self, other: Scaled) -> bool:
        """Whether two are of the same numbers."""
        if not self.is_single and (self.axis, self.block) != (other.axis, other.block):
            return False
        return same(self.scale, other.scale) and (same(self.zero, other.zero) or is_zero(self.zero, other.zero))


_ATTRIBUTES = (("axis", 1), ("block_size", 0))


def factors(scale: ir.Value) -> list[ir.Value] | None:
    """The stored tensors whose product a scale is; None if it is computed otherwise."""
    if stored(scale) is not None:
        return [scale]
    node = scale.producer()
    if node is None or node.op_type != "Mul" or node.domain != "":
        return None
    found = [factors(v) for v in node.inputs if v is not None]
    return [v for part in found for v in part or ()] if all(found) else None


def elements(scale: ir.Value) -> int | None:
    """How many numbers a stored scale has; that of a product is as large as its largest factor."""
    found = factors(scale)
    if found is None:
        shape = info(scale).shape
        return 1 if shape is not None and all(d == 1 for d in shape) else None
    return max(math.prod(t.shape.numpy()) for v in found if (t := stored(v)) is not None)


def same(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether two values are one, or hold the same stored numbers."""
    if a is b:
        return True
    x, y = stored(a), stored(b)
    if x is None or y is None or x.dtype != y.dtype or x.size != y.size:
        return False
    return bool(np.array_equal(x.numpy().reshape(-1), y.numpy().reshape(-1)))


def is_zero(*zeros: ir.Value | None) -> bool:
    """Whether all of these zero points are 0, or none."""
    tensors = [stored(zero) for zero in zeros if zero is not None]
    return all(t is not None and not np.asarray(t.numpy(), np.float32).any() for t in tensors)
