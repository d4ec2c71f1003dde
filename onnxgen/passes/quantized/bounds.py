"""The least number that a value can be, as far as the operators that make it tell."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

DEPTH = 16
SAME = set(
    "Reshape Transpose Flatten Squeeze Unsqueeze Identity MaxPool GlobalMaxPool AveragePool GlobalAveragePool Slice "
    "Gather Expand Cast Dropout ReduceMean ReduceMax ReduceMin DepthToSpace SpaceToDepth QuantizeLinear "
    "DequantizeLinear".split()
)
LEAST = {**dict.fromkeys("Relu Sigmoid HardSigmoid Softmax Softplus Exp Sqrt Abs ReduceL2".split(), 0.0)}
LEAST |= {**dict.fromkeys("Erf Tanh Softsign Sin Cos Elu".split(), -1.0), "HardSwish": -0.375, "Gelu": -0.17}


def least(value: ir.Value | None, depth: int = DEPTH) -> float:
    """A lower bound of a value's elements, -inf if none is known."""
    if value is None or depth == 0:
        return -math.inf
    node, tensor = value.producer(), stored(value)
    if tensor is not None:
        constant = tensor.numpy() if tensor.size == 1 else None
        return -math.inf if constant is None else float(constant.reshape(-1)[0])
    if node is None or node.domain != "" or node.op_type not in {*SAME, *LEAST, *_RULES}:
        return -math.inf
    if node.op_type in LEAST:
        return LEAST[node.op_type]
    bounds = [least(v, depth - 1) for v in node.inputs[: 1 if node.op_type in SAME else None]]
    if node.op_type in SAME:
        return bounds[0]
    return _RULES[node.op_type](node, bounds)


def _clip(node: ir.Node, bounds: list[float]) -> float:
    if "min" in node.attributes:
        return max(bounds[0], float(node.attributes["min"].value))
    constant = info(input_at(node, 1)).constant
    return bounds[0] if constant is None or constant.size != 1 else max(bounds[0], float(constant.reshape(-1)[0]))


_RULES: dict[str, Callable[[ir.Node, list[float]], float]] = {
    "Add": lambda node, bounds: sum(bounds),
    "Mul": lambda node, bounds: 0.0 if min(bounds) >= 0 or node.inputs[0] is node.inputs[1] else -math.inf,
    "Div": lambda node, bounds: 0.0 if min(bounds) >= 0 else -math.inf,
    "Concat": lambda node, bounds: min(bounds),
    "Max": lambda node, bounds: max(bounds),
    "Min": lambda node, bounds: min(bounds),
    "Clip": _clip,
}
