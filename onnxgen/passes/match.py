"""Reading the graph backwards from a value: what made it, with which constant, over which axes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import made_by
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


def scalar(value: ir.Value | None) -> float | None:
    """The one number that a constant holds, None if it is not one element known at generation."""
    if value is None:
        return None
    constant = info(value).constant
    if constant is None:
        tensor = stored(value)
        if tensor is None or tensor.size != 1 or is_trained(value):
            return None
        constant = tensor.numpy()
    return float(constant.reshape(-1)[0]) if constant.size == 1 and constant.dtype.kind in "iuf" else None


def dropout_ratio(node: ir.Node) -> float | None:
    """The share that a Dropout drops; None if it is computed."""
    if "ratio" in node.attributes:
        return float(node.attributes["ratio"].value)
    return scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else 0.5


# how near a constant must be to the number that it stands for, in the precision of a file
NEAR = {ir.DataType.DOUBLE: 1e-9, ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 4e-3}


def is_close(found: float, number: float, near: ir.Value) -> bool:
    """Whether a constant is `number`, as near as the type of a value beside it can say it."""
    dtype = info(near).dtype
    return math.isclose(found, number, rel_tol=NEAR.get(dtype, 1e-5) if dtype is not None else 1e-5)


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other operand of a binary node."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


@dataclass(frozen=True)
class Reduction:
    """What is reduced, over which axes (counted from the front, sorted), and whether they are kept (1.0) or not."""

    x: ir.Value
    axes: tuple[int, ...]
    keepdims: float


def reduction(value: ir.Value | None, op_type: str) -> Reduction | None:
    """A reduction over axes that are known, of a tensor whose rank is; GlobalAveragePool is a mean, too."""
    node = made_by(value, op_type)
    if node is None and op_type == "ReduceMean":
        node = made_by(value, "GlobalAveragePool")
    x = node.inputs[0] if node is not None else None
    rank = info(x).rank
    if node is None or x is None or not rank:
        return None
    if node.op_type == "GlobalAveragePool":
        return Reduction(x, tuple(range(2, rank)), 1.0)
    keepdims = float(node.attributes["keepdims"].value) if "keepdims" in node.attributes else 1.0
    if "axes" in node.attributes and node.attributes["axes"].type == ir.AttributeType.INTS:
        axes = [int(a) for a in node.attributes["axes"].value]
    else:
        given = node.inputs[1] if len(node.inputs) > 1 else None
        constant = info(given).constant
        if given is not None and constant is None or "noop_with_empty_axes" in node.attributes and given is None:
            return None
        axes = [int(a) for a in constant.reshape(-1)] if constant is not None else list(range(rank))
    return Reduction(x, tuple(sorted({a % rank for a in axes})), keepdims) if axes else None
