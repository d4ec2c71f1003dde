"""`--quantized float` and `qat`: a quantised graph as the graph of floats that it approximates.

Five steps, each a file here:

1. `layers`: an operator on integers becomes DequantizeLinear, an operator of floats, QuantizeLinear.
2. `products`: so do products of integers whose scales are multiplied after them, as dynamic quantisation writes them.
3. `moved`: a DequantizeLinear moves before what only moves integers (MaxPool, Reshape, Gather, ...).
4. `pairs`: what is quantised and dequantised at once is the value itself, or (`qat`) an `onnxgen.FakeQuantize` of it.
5. `weights`: a stored tensor that is dequantised is a float tensor, with its way back (`onnxgen.weights.dequantised`).

What is left of integers stays as it is, exactly, and a note says so: no gradient passes there.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import CHECK, Problem, Problems, counted
from onnxgen.graph.annotations import APPROXIMATED, QUANTISED_NOTES, STILL
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.options import Options
from onnxgen.passes.contrib.writer import Refused, write
from onnxgen.passes.quantized.bounds import least
from onnxgen.passes.quantized.layers import table
from onnxgen.passes.quantized.moved import dequantise_first, float_outputs
from onnxgen.passes.quantized.pairs import input_ranges, output_ranges, pairs
from onnxgen.passes.quantized.products import products
from onnxgen.passes.quantized.weights import note_products, weights
from onnxgen.passes.trainable import stored_values
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info
from onnxgen.shapes.node_facts import NONSENSE
from onnxgen.weights.approximation import Approximation

ROUNDING = {"QuantizeLinear", "DynamicQuantizeLinear"}
INTEGER = "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger".split()
SHOWN = 3


def quantized(model: ir.Model, options: Options) -> None:
    """Rewrite every quantised operator. Raises `OnnxgenError` for all that have no form in floats."""
    if options.quantized == "keep":
        return
    _write_layers(model, options)
    propagate(model.graph, options)
    roundings = [n for n in all_nodes(model.graph) if n.op_type in ROUNDING and n.domain == ""]
    outputs = float_outputs(model)
    inputs, ranges = input_ranges(model, roundings), output_ranges(model)
    products(model)
    dequantise_first(model)
    _drop_unused(model)  # else what was moved would count as a further user of the integers
    propagate(model.graph, options)
    note_products(model)
    notes = [f"output {printable(name)} is float: what the file's integers stand for" for name in outputs]
    notes += pairs(model, options.quantized)
    weights(model, options.quantized)
    _drop_unused(model)
    about = options.quantized, len(roundings), _bits(roundings), outputs, inputs, ranges
    rectified = tuple(v.name or "" for v in model.graph.outputs if v.name in ranges and least(v) >= 0)
    APPROXIMATED.set(model, Approximation(*about, rectified))
    left = [n for n in all_nodes(model.graph) if n.op_type in INTEGER]
    QUANTISED_NOTES.set(model, notes + _still(model) + ([_left(left)] if left else []))


def _write_layers(model: ir.Model, options: Options) -> None:
    known, problems = table(), Problems()
    nodes = [n for n in all_nodes(model.graph) if (n.domain, n.op_type) in known]
    if nodes:
        propagate(model.graph, options)
    for node in nodes:
        try:
            write(node, known)
        except Refused as refused:
            problems.add(_problem(node, refused.what, refused.help))
        except NONSENSE:
            problems.add(_problem(node, "the inputs and attributes contradict each other", CHECK))
    problems.raise_if_any()


def _bits(roundings: list[ir.Node]) -> int:
    """Of the coarsest type that is rounded to; floats count by their mantissas."""
    dtypes = {info(node.outputs[0]).dtype or ir.DataType.UINT8 for node in roundings}
    return min((4 if d.is_floating_point() else int(d.bitwidth) for d in dtypes), default=8)


def _problem(node: ir.Node, what: str, help: str) -> Problem:
    domain = f"{node.domain}." if node.domain else ""
    return Problem(f"the node can't be written in floats: {what}", told(node), domain + node.op_type, help=help)


def _drop_unused(model: ir.Model) -> None:
    """Remove what only served integers."""
    for node in reversed(all_nodes(model.graph)):
        if node.op_type != "Constant" and not any(o.uses() or o.is_graph_output() for o in node.outputs):
            if node.graph is not None and node.outputs:
                node.graph.remove(node, safe=True)


def _still(model: ir.Model) -> list[str]:
    """The scales that were to be learned and are not, by the reason."""
    found: dict[str, list[str]] = {}
    for value in stored_values(model.graph):
        if STILL.has(value) and value.uses():
            found.setdefault(STILL.get(value), []).append(printable(value.name or ""))
    return [
        f"not trained, since {why}: {', '.join(n[:SHOWN])}{', ...' if n[SHOWN:] else ''}" for why, n in found.items()
    ]


def _left(nodes: list[ir.Node]) -> str:
    names = ", ".join(printable(n.name or n.op_type) for n in nodes[:SHOWN]) + (", ..." if len(nodes) > SHOWN else "")
    how = "stays as it is" if len(nodes) == 1 else "stay as they are"
    return f"{counted(len(nodes), 'quantised node')} {how}, between integers ({names}): no gradient passes there"
