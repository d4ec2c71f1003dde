"""QuantizeLinear followed by DequantizeLinear becomes the value itself, or a fake quantisation of it."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import ADDS, NORM, PRODUCT, SCALES, VIEW
from onnxgen.options import Options
from onnxgen.passes.quantized.bounds import least
from onnxgen.passes.quantized.fakes import KEPT, fake
from onnxgen.passes.quantized.scales import Scaled, is_zero, target_type
from onnxgen.passes.rewrite import beside
from onnxgen.passes.steps import filled, input_at, insert
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info, set_info

FUSES = (PRODUCT, ADDS, SCALES, NORM)  # quantisers fuse a ReLU into these, since saturating at 0 has the same effect
ROUNDING = {"QuantizeLinear", "DynamicQuantizeLinear"}
SIX = 6.0


def rounded(model: ir.Model, options: Options) -> None:
    """Make one node of both, in a file whose integers are kept: what rounds a tensor by the same stored numbers.

    What was rounded before, and only moved since, is not rounded again. This is exact: the integers between say no
    more than the steps of the result.
    """
    nodes = (n for n in all_nodes(model.graph) if n.op_type == "DequantizeLinear" and n.domain == "")
    if options.quantized == KEPT and any(map(is_kept_pair, nodes)):
        propagate(model.graph, options)
        pairs(model, KEPT)


def pairs(model: ir.Model, mode: str) -> list[str]:
    """Rewrite every DequantizeLinear of a quantised value. Returns notes for the user."""
    made: dict[ir.Node, ir.Value] = {}
    passed: set[ir.Value] = set()
    rounding = [n for n in all_nodes(model.graph) if n.op_type == "QuantizeLinear" and n.domain == ""]
    shifted = not is_zero(*(Scaled.of(n).zero for n in rounding))
    rectified = 0
    for node in [n for n in all_nodes(model.graph) if n.op_type == "DequantizeLinear" and n.domain == ""]:
        quantise = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantise is None or quantise.op_type not in ROUNDING or quantise.domain != "":
            continue
        x = quantise.inputs[0]
        if x is None or not _belongs(node, quantise) or mode == KEPT and not is_kept_pair(node):
            continue
        if quantise not in made:
            made[quantise] = _rectified(quantise, x) if mode == "float" else fake(quantise, x, mode, passed, shifted)
            rectified += mode == "float" and made[quantise] is not x
        _take(node, made[quantise])
    if not rectified:
        return []
    many = "1 ReLU" if rectified == 1 else f"{rectified} ReLUs"
    return [f"{many} written where the file's quantisation cuts off below 0, which is how quantisers fuse them"]


def is_kept_pair(node: ir.Node) -> bool:
    """Return True for a DequantizeLinear of a value that was just rounded to integers, by the same stored numbers."""
    quantise = node.inputs[0].producer() if node.inputs[0] is not None else None
    if quantise is None or quantise.op_type != "QuantizeLinear" or quantise.domain != "":
        return False
    scaled, dtype = Scaled.of(quantise), target_type(quantise)
    return _belongs(node, quantise) and scaled.numbers is not None and not scaled.block and dtype.is_integer()


def _belongs(node: ir.Node, quantise: ir.Node) -> bool:
    """Return True if both have the same scale and zero point."""
    if "output_dtype" in node.attributes:
        return False
    if quantise.op_type == "DynamicQuantizeLinear":
        return node.inputs[1] is quantise.outputs[1] and input_at(node, 2) in (None, quantise.outputs[2])
    wraps = "saturate" in quantise.attributes and quantise.attributes["saturate"].as_int() == 0  # gives NaN
    return not wraps and Scaled.of(node).equals(Scaled.of(quantise))


def _take(node: ir.Node, value: ir.Value) -> None:
    """Replace the result of a DequantizeLinear by `value`, cast to its type."""
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
    """Return `x`, with a ReLU if the quantisation implies one: its range begins at 0, and `x` may be negative."""
    found = limits(quantise)
    if found is None or found[0] != 0 or not _may_be_negative(x):
        return x
    is_six = abs(found[1] - SIX) < SIX / 1000
    name = "Clip" if is_six else "Relu"
    bounds = []
    for bound in [0.0, SIX] if is_six else []:
        bounds.append(filled(quantise, (), bound, ir.DataType.FLOAT))
        bounds[-1].name = f"{quantise.outputs[0].name}:{bound:g}"
    node = ir.Node("", name, [x, *bounds], version=14)
    return _after(quantise, node, x)


def limits(quantise: ir.Node) -> tuple[float, float] | None:
    """Return the range that a QuantizeLinear with one scale saturates to, or None if it is unknown."""
    if quantise.op_type != "QuantizeLinear" or not (scaled := Scaled.of(quantise)).is_single:
        return None
    numbers, dtype = scaled.numbers, target_type(quantise)
    if numbers is None or dtype.is_floating_point():
        return None
    step, zero = numbers
    return (float(dtype.min) - zero) * step, (float(dtype.max) - zero) * step


def input_ranges(model: ir.Model, roundings: list[ir.Node]) -> dict[str, tuple[float, float]]:
    """Return the ranges that quantised inputs of the graph saturate to: the narrowest, if there are several."""
    found: dict[str, tuple[float, float]] = {}
    for node in roundings:
        value, limit = _unviewed(node.inputs[0]), limits(node)
        if limit is None or value is None or value not in model.graph.inputs:
            continue
        low, high = found.get(value.name or "", limit)
        if max(low, limit[0]) < min(high, limit[1]):
            found[value.name or ""] = max(low, limit[0]), min(high, limit[1])
    return found


def output_ranges(model: ir.Model) -> dict[str, tuple[float, float]]:
    """Return the ranges that outputs of the graph saturate to, if quantising is the last step besides moving."""
    found = {}
    for output in model.graph.outputs:
        value = _unviewed(output, "DequantizeLinear")
        node = None if value is None else value.producer()
        limit = None if node is None else limits(node)
        if limit is not None:
            found[output.name or ""] = limit
    return found


def _unviewed(value: ir.Value | None, *also: str) -> ir.Value | None:
    """Follow a value back through views, and through operators of the types in `also`."""
    while value is not None and (node := value.producer()) is not None and (is_a(node, VIEW) or node.op_type in also):
        value = node.inputs[0]
    return value


def _may_be_negative(x: ir.Value) -> bool:
    """Return True if a quantiser may have fused a ReLU into the node that produces `x`."""
    value = _unviewed(x)
    node = None if value is None else value.producer()
    return node is not None and is_a(node, *FUSES) and least(x) < 0
