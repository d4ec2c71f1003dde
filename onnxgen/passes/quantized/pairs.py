"""QuantizeLinear with DequantizeLinear becomes the value itself, or a fake quantisation of it.

`onnxgen.FakeQuantize(x, scale, zero)` rounds and saturates like integers, and returns floats. `least` is a lower bound
of a value's elements, from the operators that produce it.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import BLOCKED, FIXED, SCOPE, STILL
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ADDS, AVERAGES, FILLS, MOVES, NORM, PICKS, PRODUCT, SAME, SCALES, VIEW
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.quantized.moved import Scaled, elements, factors, is_zero, moves, target_type
from onnxgen.passes.rewrite import constant, drop, filled, input_at, insert, is_used, take_facts
from onnxgen.shapes import propagate
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.dequantised import BITS, TABLE, Dequantised, UnpackedTensor
from onnxgen.weights.stored import stored

MAX_DEPTH = 16  # producers in a row


def least(value: ir.Value | None, depth: int = MAX_DEPTH) -> float:
    """Return a lower bound of a value's elements, -inf if none is known."""
    if value is None or depth == 0:
        return -math.inf
    node, tensor = value.producer(), stored(value)
    if tensor is not None:
        return float(tensor.numpy().reshape(-1)[0]) if tensor.size == 1 else -math.inf
    if node is None or node.domain != "":
        return -math.inf
    facts = known(node)
    rule = facts.rules.bound
    if facts.least is not None or rule is None and not is_a(node, MOVES, SAME, PICKS, AVERAGES):
        return -math.inf if facts.least is None else facts.least
    bounds = [least(v, depth - 1) for i, v in enumerate(node.inputs) if i in facts.data and v is not None]
    return rule(node, bounds) if rule is not None else min(bounds + [0.0] * is_a(node, FILLS))


FAKE, DYNAMIC = "FakeQuantize", "FakeQuantizeDynamic"
LEARNED, KEPT = "qat-learned", "keep"
MOST_PASSED = 2


def fake(quantise: ir.Node, x: ir.Value, mode: str, passed: set[ir.Value], shifted: bool) -> ir.Value:
    """Return the fake quantisation of `x` that replaces a QuantizeLinear or DynamicQuantizeLinear.

    Args:
        passed: values that are not rounded, since they were before; one is added where integers are kept.
        shifted: a zero point of 0 stays, since others of the file are not 0: copies of a block are then alike.
    """
    if quantise.op_type == "DynamicQuantizeLinear":
        return _put(quantise, ir.Node(DOMAIN, DYNAMIC, [x], version=1), x)
    scaled = Scaled.of(quantise)
    if _is_rounded(x, scaled, mode, passed):
        if mode == KEPT:  # a scale that is learned counts each rounding: there, all others go
            passed.add(x)
        return x
    one_scale = _is_of_one_scale(quantise)
    node = _node(x, scaled, target_type(quantise), mode, one_scale=one_scale, shifted=shifted)
    return x if node is None else _put(quantise, node, x)


def once(model: ir.Model, options: Options) -> None:
    """Remove every fake quantisation of a value that was rounded by the same scale before, and only moved since."""
    passed: set[ir.Value] = set()
    for node in [n for n in all_nodes(model.graph) if n.op_type == FAKE and n.domain == DOMAIN]:
        x, output = node.inputs[0], node.outputs[0]
        if x is None or output.is_graph_output() and (x.is_graph_output() or x.producer() is None):
            continue
        if _is_rounded(x, Scaled.of(node), LEARNED if options.quantized == LEARNED else "", passed):
            passed.add(x)
            if output.is_graph_output():
                output.name, x.name = None, output.name
            output.replace_all_uses_with(x, replace_graph_outputs=True)
            drop(node)


def _is_of_one_scale(quantise: ir.Node) -> bool:
    """Return True if one tensor is the scale for quantising and dequantising. Two would be trained apart."""
    users, scale = (use.node for use in quantise.outputs[0].uses()), quantise.inputs[1]
    return not FIXED.has(quantise) and all(n.op_type == "DequantizeLinear" and n.inputs[1] is scale for n in users)


def _is_rounded(x: ir.Value, scaled: Scaled, mode: str, passed: set[ir.Value]) -> bool:
    """Return True if a value was rounded by the same scale before, and only moved since.

    After several values that have `passed`, the next one is rounded: the checker of passes can follow so many.
    """
    node, value, count = x.producer(), x, 0
    while node is not None and node.domain == "" and moves(node, value) and known(node).data == range(1):
        if node.inputs[0] is None:
            return False
        value = node.inputs[0]
        node, count = value.producer(), count + (value in passed)
    if node is None or node.op_type != FAKE or not scaled.is_single or count >= MOST_PASSED:
        return False
    return (mode != LEARNED or node.inputs[1] is scaled.scale) and Scaled.of(node).equals(scaled)


def fake_weight(before: ir.Node, weight: ir.Value, how: Dequantised, mode: str) -> ir.Value:
    """Return a stored weight, rounded by its own scale as its integers are.

    Biases of int32 are not rounded, since their steps are far finer than any other, nor are the codes of a table.
    """
    tensor = stored(before.inputs[0])
    if how.form == TABLE or tensor is None or tensor.dtype == ir.DataType.INT32:
        return weight
    scaled, dtype = Scaled.of(before), ir.DataType(tensor.dtype)
    if how.form == BITS:
        dtype = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8}.get(how.bits, ir.DataType.UINT8)
        shape = how.shape[0], -(-how.shape[1] // how.block)
        scale = _reshaped(before, scaled.scale, shape)
        scaled = Scaled(scale, _unpacked(before, how, shape), how.axis, how.block)
    node = _node(weight, scaled, dtype, mode, how)
    if node is None:
        return weight
    SCOPE.copy(before, node)
    return _put(before, node, weight)


def _node(
    x: ir.Value, scaled: Scaled, dtype: ir.DataType, mode: str, how: Dequantised | None = None, one_scale: bool = True,
    shifted: bool = False,
) -> ir.Node | None:  # fmt: skip
    attributes = [ir.AttrInt64("axis", scaled.axis), ir.AttrInt64("block", scaled.block)]
    inputs: list[ir.Value | None] = [x, scaled.scale]
    if dtype.is_floating_point():
        attributes.append(ir.AttrInt64("to", dtype))
    elif not dtype.is_integer():
        return None
    else:
        low, high = int(dtype.min), int(dtype.max)
        if how is not None and how.form == BITS:
            low, high = 0, 2**how.bits - 1
            if scaled.zero is None:  # the zero point is the middle
                low, high = low - 2 ** (how.bits - 1), high - 2 ** (how.bits - 1)
        if scaled.zero is not None and (shifted or not is_zero(scaled.zero)):
            inputs.append(scaled.zero)
        attributes += [ir.AttrInt64("low", low), ir.AttrInt64("high", high)]
    node = ir.Node(DOMAIN, FAKE, inputs, attributes, version=1)
    if mode == LEARNED:
        _learn(node, scaled.scale, one_scale)
    return node


def _learn(node: ir.Node, scale: ir.Value, one_scale: bool) -> None:
    """Make the scale of a fake quantisation trainable, or note why it is not."""
    if one_scale and elements(scale) is not None and _is_own(scale):
        BLOCKED.set(node, {2})
        return
    why = "several tensors share the scale" if one_scale else "the file has other numbers that depend on the scale"
    for value in factors(scale) or ():
        STILL.set(value, why)


def _is_own(scale: ir.Value) -> bool:
    """Return True if a scale belongs to one tensor of integers only. Shared scales are not trained."""
    # a DequantizeLinear of a stored weight may just have lost its users
    nodes = [u.node for u in scale.uses() if any(map(is_used, u.node.outputs)) or stored(u.node.inputs[0]) is not None]
    integers = {n.outputs[0] for n in nodes if n.op_type == "QuantizeLinear"}
    return len(integers | {n.inputs[0] for n in nodes if n.op_type == "DequantizeLinear"}) < 2


def _put(before: ir.Node, node: ir.Node, like: ir.Value) -> ir.Value:
    node.name = before.name
    output = insert(before, node)
    take_facts(output, like)
    output.name = f"{before.outputs[0].name}:fake"
    return output


def _reshaped(before: ir.Node, value: ir.Value, shape: tuple[int, int]) -> ir.Value:
    """Reshape a scale to [rows, blocks]."""
    if info(value).shape == shape:
        return value
    sizes = constant(before, np.asarray(shape), f"{before.outputs[0].name}:blocks")
    node = ir.Node("", "Reshape", [value, sizes], version=21)
    return insert(before, node, f"{value.name}:blocks", Info(info(value).dtype, shape))


def _unpacked(before: ir.Node, how: Dequantised, shape: tuple[int, int]) -> ir.Value | None:
    """Return zero points with one element for each block. They may be packed like the weight."""
    zero = Scaled.of(before).zero
    packed = stored(zero)
    graph = before.graph
    if zero is None or packed is None or not isinstance(graph, ir.Graph):
        return None
    if packed.dtype != ir.DataType.UINT8:
        return _reshaped(before, zero, shape)
    tensor = UnpackedTensor(how, packed, f"{zero.name}:blocks")
    value = ir.Value(name=tensor.name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    set_info(value, Info(tensor.dtype, shape))
    graph.register_initializer(value)
    return value


FUSES = (PRODUCT, ADDS, SCALES, NORM)  # quantisers fuse a ReLU into these, since saturating at 0 has the same effect
ROUNDING = {"QuantizeLinear", "DynamicQuantizeLinear"}
SIX = 6.0


def rounded(model: ir.Model, options: Options) -> None:
    """Make one node of both, in a file whose integers are kept: what rounds a tensor by the same stored numbers.

    What was rounded before, and only moved since, is not rounded again. This is exact: the integers between say no
    more than the steps of the result.
    """
    if options.quantized == KEPT and any(map(is_kept_pair, standard_nodes(model, "DequantizeLinear"))):
        propagate(model.graph, options)
        pairs(model, KEPT)


def pairs(model: ir.Model, mode: str) -> list[str]:
    """Rewrite every DequantizeLinear of a quantised value. Returns notes for the user."""
    replacements: dict[ir.Node, ir.Value] = {}
    passed: set[ir.Value] = set()
    shifted = not is_zero(*(Scaled.of(n).zero for n in standard_nodes(model, "QuantizeLinear")))
    rectified = 0
    for node in standard_nodes(model, "DequantizeLinear"):
        quantise = made_by(node.inputs[0], *ROUNDING)
        x = None if quantise is None else quantise.inputs[0]
        if quantise is None or x is None or not _belongs(node, quantise) or mode == KEPT and not is_kept_pair(node):
            continue
        if quantise not in replacements:
            is_float = mode == "float"
            replacements[quantise] = _rectified(quantise, x) if is_float else fake(quantise, x, mode, passed, shifted)
            rectified += is_float and replacements[quantise] is not x
        _take(node, replacements[quantise])
    if not rectified:
        return []
    many = "1 ReLU" if rectified == 1 else f"{rectified} ReLUs"
    return [f"{many} written where the file's quantisation cuts off below 0, which is how quantisers fuse them"]


def is_kept_pair(node: ir.Node) -> bool:
    """Return True for a DequantizeLinear of a value that was just rounded to integers, by the same stored numbers."""
    quantise = made_by(node.inputs[0], "QuantizeLinear")
    if quantise is None:
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
    output = insert(node, new, scope_of=node)
    take_facts(output, like)
    output.name = f"{like.name}:floats"
    return output


def _rectified(quantise: ir.Node, x: ir.Value) -> ir.Value:
    """Return `x`, with a ReLU if the quantisation implies one: its range begins at 0, and `x` may be negative."""
    saturation = limits(quantise)
    if saturation is None or saturation[0] != 0 or not _may_be_negative(x):
        return x
    is_six = abs(saturation[1] - SIX) < SIX / 1000
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
    ranges: dict[str, tuple[float, float]] = {}
    for node in roundings:
        value, limit = _unviewed(node.inputs[0]), limits(node)
        if limit is None or value is None or value not in model.graph.inputs:
            continue
        low, high = ranges.get(value.name or "", limit)
        if max(low, limit[0]) < min(high, limit[1]):
            ranges[value.name or ""] = max(low, limit[0]), min(high, limit[1])
    return ranges


def output_ranges(model: ir.Model) -> dict[str, tuple[float, float]]:
    """Return the ranges that outputs of the graph saturate to, if quantising is the last step besides moving."""
    ranges = {}
    for output in model.graph.outputs:
        value = _unviewed(output, "DequantizeLinear")
        node = None if value is None else value.producer()
        limit = None if node is None else limits(node)
        if limit is not None:
            ranges[output.name or ""] = limit
    return ranges


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
