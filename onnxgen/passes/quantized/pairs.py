"""What is quantised and dequantised at once: the value itself, or a fake quantisation of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import VIEW
from onnxgen.passes.quantized.bounds import least
from onnxgen.passes.quantized.fakes import fake
from onnxgen.passes.quantized.scales import Scaled
from onnxgen.passes.rewrite import beside
from onnxgen.passes.steps import input_at, insert
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import stored

# what a quantiser fuses a ReLU into, since saturating at 0 does the same
FUSED = set("Conv ConvTranspose Gemm MatMul Add Sub Mul BatchNormalization InstanceNormalization".split())
ROUNDS = {"QuantizeLinear", "DynamicQuantizeLinear"}
SIX = 6.0


def pairs(model: ir.Model, mode: str) -> list[str]:
    """Rewrite every DequantizeLinear of what a QuantizeLinear made; what a person should know of it."""
    made: dict[ir.Node, ir.Value] = {}
    rectified = 0
    for node in [n for n in all_nodes(model.graph) if n.op_type == "DequantizeLinear" and n.domain == ""]:
        quantise = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantise is None or quantise.op_type not in ROUNDS or quantise.domain != "":
            continue
        x = quantise.inputs[0]
        if x is None or not _belongs(node, quantise):
            continue
        if quantise not in made:
            made[quantise] = _rectified(quantise, x) if mode == "float" else fake(quantise, x, mode)
            rectified += mode == "float" and made[quantise] is not x
        _take(node, made[quantise])
    if not rectified:
        return []
    many = "1 ReLU" if rectified == 1 else f"{rectified} ReLUs"
    return [f"{many} written where the file's quantisation cuts off below 0, which is how quantisers fuse them"]


def _belongs(node: ir.Node, quantise: ir.Node) -> bool:
    """Whether both are of the same scale and zero point."""
    if "output_dtype" in node.attributes:
        return False
    if quantise.op_type == "DynamicQuantizeLinear":
        return node.inputs[1] is quantise.outputs[1] and input_at(node, 2) in (None, quantise.outputs[2])
    wraps = "saturate" in quantise.attributes and quantise.attributes["saturate"].as_int() == 0  # to NaN
    return not wraps and Scaled.of(node).equals(Scaled.of(quantise))


def _take(node: ir.Node, value: ir.Value) -> None:
    """Let the users of a DequantizeLinear take `value`, in its type."""
    old = node.outputs[0]
    dtypes = info(value).dtype, info(old).dtype
    if None not in dtypes and dtypes[0] != dtypes[1] and dtypes[1] is not None:
        value = _after(node, ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtypes[1])], version=21), old)
    if old.is_graph_output():
        value = _after(node, ir.Node("", "Identity", [value], version=21), old)
        old.name, value.name = None, old.name
    old.replace_all_uses_with(value, replace_graph_outputs=True)


def _after(node: ir.Node, new: ir.Node, like: ir.Value) -> ir.Value:
    beside(new, node)
    insert(node, new)
    made = new.outputs[0]
    made.name, made.type, made.shape = f"{like.name}:floats", like.type, like.shape
    set_info(made, info(like))
    return made


def _rectified(quantise: ir.Node, x: ir.Value) -> ir.Value:
    """`x`, with the ReLU that the quantisation stands for: its range begins at 0, and what makes it may be negative."""
    found = limits(quantise)
    if found is None or found[0] != 0 or not _may_be_negative(x):
        return x
    is_six = abs(found[1] - SIX) < SIX / 1000
    name = "Clip" if is_six else "Relu"
    bounds = [_constant(quantise, 0.0), _constant(quantise, SIX)] if is_six else []
    node = ir.Node("", name, [x, *bounds], version=14)
    return _after(quantise, node, x)


def _constant(before: ir.Node, number: float) -> ir.Value:
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.float32(number)))], version=21)
    insert(before, node)
    node.outputs[0].name = f"{before.outputs[0].name}:{number:g}"
    return node.outputs[0]


def limits(quantise: ir.Node) -> tuple[float, float] | None:
    """The least and the largest number that a QuantizeLinear of one scale lets pass; None if they are unknown."""
    if quantise.op_type != "QuantizeLinear" or not (scaled := Scaled.of(quantise)).is_single:
        return None
    scale, zero = stored(scaled.scale), stored(scaled.zero)
    dtype = zero.dtype if zero is not None else info(quantise.outputs[0]).dtype or ir.DataType.UINT8
    if scale is None or dtype.is_floating_point():
        return None
    at = 0.0 if zero is None else float(zero.numpy().reshape(-1)[0])
    step = float(scale.numpy().reshape(-1)[0])
    return (float(dtype.min) - at) * step, (float(dtype.max) - at) * step


def input_ranges(model: ir.Model, roundings: list[ir.Node]) -> dict[str, tuple[float, float]]:
    """What inputs of the graph saturate to that are quantised at once; where several do it, the narrowest."""
    found: dict[str, tuple[float, float]] = {}
    for node in roundings:
        value, limit = node.inputs[0], limits(node)
        while value is not None and (maker := value.producer()) is not None and is_a(maker, VIEW):
            value = maker.inputs[0]
        if limit is None or value is None or value not in model.graph.inputs:
            continue
        low, high = found.get(value.name or "", limit)
        if max(low, limit[0]) < min(high, limit[1]):
            found[value.name or ""] = max(low, limit[0]), min(high, limit[1])
    return found


def output_ranges(model: ir.Model) -> dict[str, tuple[float, float]]:
    """What outputs of the graph saturate to that were quantised last, and perhaps moved since."""
    found = {}
    for output in model.graph.outputs:
        node = output.producer()
        while (
            node is not None and (is_a(node, VIEW) or node.op_type == "DequantizeLinear") and node.inputs[0] is not None
        ):
            node = node.inputs[0].producer()
        limit = None if node is None else limits(node)
        if limit is not None:
            found[output.name or ""] = limit
    return found


def _may_be_negative(x: ir.Value) -> bool:
    """Whether a quantiser may have fused a ReLU into what makes `x`."""
    node = x.producer()
    while node is not None and is_a(node, VIEW) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type in FUSED and least(x) < 0
