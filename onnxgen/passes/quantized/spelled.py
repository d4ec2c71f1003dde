"""DequantizeLinear of stored integers that a file spells out: Cast and Mul, perhaps with a zero point between.

Tools that keep weights as integers and compute with floats write it so. One DequantizeLinear computes the same floats.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import copy_all
from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import replace
from onnxgen.weights.stored import stored

# Every number of these types, and every difference of two, is a float32.
_INTEGERS = {getattr(ir.DataType, name) for name in "INT2 UINT2 INT4 UINT4 INT8 UINT8 INT16 UINT16".split()}
FLOATS = ir.DataType.FLOAT  # of a narrower type, the product is rounded once more than DequantizeLinear's


def spelled_out(model: ir.Model) -> None:
    """Replace `(Cast(integers) - Cast(zero)) * scale` of stored tensors by DequantizeLinear."""
    for node in list(standard_nodes(model, "Mul")):
        for product, scale in (node.inputs, node.inputs[::-1]):
            found = _dequantised(product, scale)
            if found is not None:
                integers, zero, axis = found
                inputs = [integers, scale, *([zero] if zero is not None else [])]
                new = ir.Node("", "DequantizeLinear", inputs, [ir.AttrInt64("axis", axis)], version=21)
                copy_all(node, new)
                new.metadata_props.update(node.metadata_props)
                replace(node, new)
                break


def _dequantised(product: ir.Value | None, scale: ir.Value | None) -> tuple[ir.Value, ir.Value | None, int] | None:
    """Return the integers, their zero point, and the axis of the scale. None if this is something else."""
    minus = made_by(product, "Sub")
    integers = _integers(product if minus is None else minus.inputs[0])
    zero = None if minus is None else _integers(minus.inputs[1])
    tensor, factor = stored(integers), stored(scale)
    if integers is None or tensor is None or factor is None or factor.dtype != FLOATS or minus and zero is None:
        return None
    shape, spread = (tuple(int(d) for d in t.shape.numpy()) for t in (tensor, factor))
    axis = _axis(shape, spread)
    zeros = stored(zero)
    if zeros is not None and (zeros.dtype != tensor.dtype or zeros.size not in (1, factor.size)):
        return None
    if (
        axis is None
        or zeros is not None
        and zeros.size > 1
        and _axis(shape, tuple(int(d) for d in zeros.shape.numpy())) != axis
    ):
        return None
    return integers, zero, axis


def _integers(value: ir.Value | None) -> ir.Value | None:
    """Return the stored integers that a Cast makes floats of."""
    cast = made_by(value, "Cast")
    if cast is None or cast.attributes.get_int("to", 0) != FLOATS:
        return None
    tensor = stored(cast.inputs[0])
    return cast.inputs[0] if tensor is not None and tensor.dtype in _INTEGERS else None


def _axis(shape: tuple[int, ...], scale: tuple[int, ...]) -> int | None:
    """Return the only axis of a tensor along which a scale differs; 0 if it is one number.

    None if it differs along several, or if the product has another shape than the tensor.
    """
    if len(scale) > len(shape):
        return None
    first = len(shape) - len(scale)
    axes = [first + place for place, size in enumerate(scale) if size != 1]
    if len(axes) > 1 or any(scale[axis - first] != shape[axis] for axis in axes):
        return None
    return axes[0] if axes else 0
