"""Whether an integer tensor can hold negative elements, as far as the graph tells."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.shapes.dims import nonnegative
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

# operators that only move their first input's elements
MOVES = frozenset({
    "Cast", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "ReduceMax", "ReduceMin", "ReduceSum", "CumSum",
})  # fmt: skip
# never negative if none of their inputs is
CLOSED = frozenset({"Add", "Concat", "Max", "Min", "Mul", "Sum", "Div"})
POSITIVE = frozenset({"Abs", "ArgMax", "ArgMin", "NonZero", "Shape", "Size", "Relu", "OneHot"})
DEPTH = 32


def never_negative(value: ir.Value | None, trust_inputs: bool = False, depth: int = DEPTH) -> bool:
    """True only if it is proven; `trust_inputs`: take the graph's inputs to be ids, which are not negative."""
    if value is None or depth == 0:
        return False
    data: NDArray[Any] | None = info(value).data
    if data is not None:
        if data.dtype == object:
            return all(nonnegative(d) for d in data.flat)
        return data.dtype.kind in "biuf" and bool((data >= 0).all())
    tensor = stored(value)
    if tensor is not None:
        return tensor.dtype.is_integer() and bool((tensor.numpy() >= 0).all())
    node = value.producer()
    if node is None:
        return trust_inputs and value.is_graph_input()
    if node.domain not in ("", "ai.onnx"):
        return False
    inputs = [i for i in node.inputs if i is not None]
    if node.op_type in POSITIVE or (node.op_type == "TopK" and value is node.outputs[1]):
        return True
    if node.op_type in MOVES:
        return never_negative(inputs[0], trust_inputs, depth - 1)
    if node.op_type == "Where":
        inputs = inputs[1:]
    elif node.op_type == "Clip":
        inputs = inputs[1:2]
    elif node.op_type == "Range":
        inputs = [inputs[0], inputs[2]]
    elif node.op_type not in CLOSED:
        return False
    return bool(inputs) and all(never_negative(i, trust_inputs, depth - 1) for i in inputs)
