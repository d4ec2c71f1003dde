"""Move DequantizeLinear before operators that only move integers, up to where these were quantised or stored.

`dequantise(move(x)) == move(dequantise(x))` holds for one scale, and also for a maximum, since scales are positive.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE, copy_all
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import FILLS, MOVES, PICKS, RESAMPLES
from onnxgen.options import Options
from onnxgen.passes.quantized.scales import Scaled
from onnxgen.passes.steps import filled, input_at, insert
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

QUANTISED_TYPES = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}


def float_outputs(model: ir.Model) -> dict[str, tuple[float, float]]:
    """Make quantised outputs of the graph floats. Returns their scales and zero points."""
    found: dict[str, tuple[float, float]] = {}
    for index, output in enumerate(model.graph.outputs):
        quantise = _quantised_by(output)
        numbers = None if quantise is None else Scaled.of(quantise).numbers
        if quantise is None or numbers is None or info(output).dtype not in QUANTISED_TYPES:
            continue
        node = ir.Node("", "DequantizeLinear", [output, *quantise.inputs[1:]], quantise.attributes.values(), version=21)
        copy_all(quantise, node)
        producer = output.producer()
        assert producer is not None
        model.graph.insert_after(producer, node)
        made, name = node.outputs[0], output.name
        output.name, made.name = f"{name}.integers", name
        model.graph.outputs[index] = made
        found[name or ""] = numbers
    return found


def _quantised_by(value: ir.Value) -> ir.Node | None:
    """Return the QuantizeLinear that a value's integers come from, if they were only moved since."""
    made: ir.Value | None = value
    node = value.producer()
    while made is not None and node is not None and node.domain == "" and moves(node, made):
        made = node.inputs[0]
        node = None if made is None else made.producer()
    is_plain = node is not None and node.op_type == "QuantizeLinear" and node.domain == ""
    return node if is_plain and node is not None and Scaled.of(node).is_single else None


def dequantise_first(model: ir.Model) -> None:
    """Move every DequantizeLinear with one scale up as far as possible."""
    _move(_dequantising(model), set())


def dequantise_rows(model: ir.Model, options: Options) -> None:
    """Move every DequantizeLinear of the rows of a table up to these, into the module that has the table.

    `quantize_dynamic` leaves it at the first operator that takes floats, which may be in a module far behind.
    """
    lookups = {
        node
        for node in all_nodes(model.graph)
        if node.op_type == "Gather" and (table := stored(node.inputs[0])) is not None and table.dtype in QUANTISED_TYPES
    }
    for node in _dequantising(model):
        mover, made = node.inputs[0].producer() if node.inputs[0] else None, node.inputs[0]
        while mover is not None and mover not in lookups and mover.domain == "" and moves(mover, made):
            made = mover.inputs[0]
            mover = None if made is None else made.producer()
        if mover in lookups and made is not node.inputs[0]:
            for first in _move([node], lookups):
                SCOPE.set(first, SCOPE.get(mover))


def _dequantising(model: ir.Model) -> list[ir.Node]:
    return [n for n in all_nodes(model.graph) if n.op_type == "DequantizeLinear" and n.domain == ""]


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
        made = moved[key].outputs[source.index() or 0]
        made.name = made.name or node.outputs[0].name
        node.outputs[0].replace_all_uses_with(made, replace_graph_outputs=True)
        if made.is_graph_output():
            made.name = node.outputs[0].name
        made.type, made.shape = node.outputs[0].type, node.outputs[0].shape
    return ended


def _is_plain(node: ir.Node) -> bool:
    return Scaled.of(node).is_single and "output_dtype" not in node.attributes


def moves(node: ir.Node, made: ir.Value | None) -> bool:
    """Return True if a result of a node only has elements of its data, so that one scale holds before and after."""
    if is_a(node, RESAMPLES):
        mode = node.attributes.get("mode")
        return mode is None or mode.as_string() == "nearest"
    if is_a(node, PICKS):
        return made is node.outputs[0]
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
            first = ir.Node("", "DequantizeLinear", [value, *node.inputs[1:]], node.attributes.values(), version=21)
            copy_all(node, first)
            first.outputs[0].name = f"{node.outputs[0].name}:{index}"
            insert(mover, first)
            pending.append(first)
            inputs[index] = first.outputs[0]
    made = ir.Node(
        "", mover.op_type, inputs, mover.attributes.values(), num_outputs=len(mover.outputs), version=mover.version,
        name=mover.name,
    )  # fmt: skip
    copy_all(mover, made)
    made.metadata_props.update(mover.metadata_props)
    insert(mover, made)
    return made


def _zero(mover: ir.Node, node: ir.Node) -> ir.Value:
    """Return the integer 0, with which a Pad without a value pads."""
    dtype = info(mover.inputs[0]).dtype or ir.DataType.UINT8
    zero = filled(mover, (), 0, dtype)
    zero.name = f"{node.outputs[0].name}:padding"
    return zero
