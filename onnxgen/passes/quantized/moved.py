"""DequantizeLinear moves before operators that only move integers; the scales of both nodes.

It moves up to where the integers were quantised or stored.

`dequantise(move(x)) == move(dequantise(x))` holds for one scale, and also for a maximum, since scales are positive.
`Scaled` reads the scale, zero point and axis of a QuantizeLinear or DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE, copy_all
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import FILLS, MOVES, PICKS, RESAMPLES
from onnxgen.options import Options
from onnxgen.passes.match import maker, standard_nodes
from onnxgen.passes.rewrite import filled, input_at, insert
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
    node = made_by(scale, "Mul")
    parts = [] if node is None else [factors(v) for v in node.inputs if v is not None]
    return [v for part in parts for v in part or ()] if parts and all(parts) else None


def elements(scale: ir.Value) -> int | None:
    """Return the number of elements of a stored scale (for a product, of its largest factor). None if it is unknown."""
    parts = factors(scale)
    if parts is None:
        shape = info(scale).shape
        return 1 if shape is not None and all(d == 1 for d in shape) else None
    return max(math.prod(t.shape.numpy()) for v in parts if (t := stored(v)) is not None)


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


QUANTISED_TYPES = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}


def float_outputs(model: ir.Model) -> dict[str, tuple[float, float]]:
    """Make quantised outputs of the graph floats. Returns their scales and zero points."""
    scales: dict[str, tuple[float, float]] = {}
    for index, output in enumerate(model.graph.outputs):
        quantise = _quantised_by(output)
        numbers = None if quantise is None else Scaled.of(quantise).numbers
        if quantise is None or numbers is None or info(output).dtype not in QUANTISED_TYPES:
            continue
        node, producer = _dequantise_like(quantise, output), output.producer()
        assert producer is not None
        model.graph.insert_after(producer, node)
        floats, name = node.outputs[0], output.name
        output.name, floats.name = f"{name}.integers", name
        model.graph.outputs[index] = floats
        scales[name or ""] = numbers
    return scales


def _dequantise_like(node: ir.Node, x: ir.Value) -> ir.Node:
    """Make a DequantizeLinear with the scale and zero point of another node."""
    new = ir.Node("", "DequantizeLinear", [x, *node.inputs[1:]], node.attributes.values(), version=21)
    copy_all(node, new)
    return new


def _unmoved(value: ir.Value, stops: Container[ir.Node] = ()) -> ir.Value:
    """Return the value whose integers a value only moves. `stops`: what is not looked behind."""
    node = value.producer()
    while node is not None and node not in stops and node.domain == "" and moves(node, value):
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
        node = value.producer()
    return value


def _quantised_by(value: ir.Value) -> ir.Node | None:
    """Return the QuantizeLinear that a value's integers come from, if they were only moved since."""
    node = made_by(_unmoved(value), "QuantizeLinear")
    return node if node is not None and Scaled.of(node).is_single else None


def dequantise_first(model: ir.Model) -> None:
    """Move every DequantizeLinear with one scale up as far as possible."""
    _move(list(standard_nodes(model, "DequantizeLinear")), set())


def dequantise_rows(model: ir.Model, options: Options) -> None:
    """Move every DequantizeLinear of the rows of a table up to these, into the module that has the table.

    `quantize_dynamic` leaves it at the first operator that takes floats, which may be in a module far behind.
    """
    gathers = ((node, stored(node.inputs[0])) for node in all_nodes(model.graph) if node.op_type == "Gather")
    lookups = {node for node, table in gathers if table is not None and table.dtype in QUANTISED_TYPES}
    for node in list(standard_nodes(model, "DequantizeLinear")):
        source = None if node.inputs[0] is None else _unmoved(node.inputs[0], lookups)
        lookup = maker(source)
        if lookup in lookups and source is not node.inputs[0]:
            for first in _move([node], lookups):
                SCOPE.set(first, SCOPE.get(lookup))


def _move(pending: list[ir.Node], stops: Container[ir.Node]) -> list[ir.Node]:
    """Move nodes up as far as possible, but not before `stops`; return those that then take what one of these makes."""
    ended: list[ir.Node] = []
    moved: dict[tuple[ir.Node, ir.Value, ir.Value | None], ir.Node] = {}
    while pending:
        node = pending.pop()
        source = node.inputs[0]
        mover = None if source is None else source.producer()
        if mover in stops:
            ended.append(node)
            continue
        if mover is None or mover.domain != "" or not moves(mover, source) or not _is_plain(node):
            continue
        assert source is not None
        key = mover, node.inputs[1] or source, input_at(node, 2)
        if key not in moved:
            moved[key] = _on_floats(mover, node, pending)
        output = moved[key].outputs[source.index() or 0]
        output.name = output.name or node.outputs[0].name
        node.outputs[0].replace_all_uses_with(output, replace_graph_outputs=True)
        if output.is_graph_output():
            output.name = node.outputs[0].name
        output.type, output.shape = node.outputs[0].type, node.outputs[0].shape
    return ended


def _is_plain(node: ir.Node) -> bool:
    return Scaled.of(node).is_single and "output_dtype" not in node.attributes


def moves(node: ir.Node, output: ir.Value | None) -> bool:
    """Return True if a result of a node only has elements of its data, so that one scale holds before and after."""
    if is_a(node, RESAMPLES):
        mode = node.attributes.get("mode")
        return mode is None or mode.as_string() == "nearest"
    if is_a(node, PICKS):
        return output is node.outputs[0]
    computes = "reduction" in node.attributes and node.attributes["reduction"].as_string() != "none"
    return is_a(node, MOVES) and not computes and (node.op_type == "Pad" or not is_a(node, FILLS))


def _on_floats(mover: ir.Node, node: ir.Node, pending: list[ir.Node]) -> ir.Node:
    """Return the same operator on dequantised data. The new DequantizeLinear nodes are added to `pending`."""
    data = known(mover).data
    inputs: list[ir.Value | None] = list(mover.inputs)
    if mover.op_type == "Pad" and input_at(mover, 2) is None:
        inputs = [*inputs[:2], _zero(mover, node), *inputs[3:]]
    for index, value in enumerate(inputs):
        if value is not None and index in data:
            first = _dequantise_like(node, value)
            inputs[index] = insert(mover, first, f"{node.outputs[0].name}:{index}")
            pending.append(first)
    new = ir.Node(
        "", mover.op_type, inputs, mover.attributes.values(), num_outputs=len(mover.outputs), version=mover.version,
        name=mover.name,
    )  # fmt: skip
    copy_all(mover, new)
    new.metadata_props.update(mover.metadata_props)
    insert(mover, new)
    return new


def _zero(mover: ir.Node, node: ir.Node) -> ir.Value:
    """Return the integer 0, with which a Pad without a value pads."""
    dtype = info(mover.inputs[0]).dtype or ir.DataType.UINT8
    zero = filled(mover, (), 0, dtype)
    zero.name = f"{node.outputs[0].name}:padding"
    return zero
