"""`--quantized float` and `qat`: rewrite a quantised graph as the graph of floats that it approximates.

The six steps have a file each:

1. `spelled`: stored integers that Cast and Mul make floats of become DequantizeLinear.
2. `layers`: operators on integers become DequantizeLinear, a float operator and QuantizeLinear.
3. `products`: so do integer products that are multiplied by their scales afterwards, as dynamic quantisation writes.
4. `moved`: DequantizeLinear moves before operators that only move integers (MaxPool, Reshape, Gather, ...).
5. `pairs`: QuantizeLinear with DequantizeLinear becomes the value itself, or for `qat` an `onnxgen.FakeQuantize` of it.
6. `weights`: dequantised stored tensors become float tensors, with their inverse (`onnxgen.weights.dequantised`).

Integer operators that remain are computed exactly. A note says that no gradient passes through them.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import CHECK, Problem, Problems, counted
from onnxgen.graph.annotations import APPROXIMATED, QUANTISED_NOTES, STILL
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import QUANTISED
from onnxgen.options import Options
from onnxgen.passes.contrib.writer import Refused, write
from onnxgen.passes.quantized.layers import float_bodies, products
from onnxgen.passes.quantized.moved import dequantise_first, float_outputs
from onnxgen.passes.quantized.pairs import ROUNDING, input_ranges, least, output_ranges, pairs
from onnxgen.passes.quantized.spelled import spelled_out
from onnxgen.passes.quantized.weights import note_products, weights
from onnxgen.passes.rewrite import is_used
from onnxgen.passes.trainable import stored_values
from onnxgen.shapes import propagate
from onnxgen.shapes.info import NONSENSE, info
from onnxgen.weights.dequantised import Approximation

MAX_NAMES_SHOWN = 3


def quantized(model: ir.Model, options: Options) -> None:
    """Rewrite every quantised operator. Raises `OnnxgenError` with all that have no float equivalent."""
    if options.quantized == "keep":
        return
    spelled_out(model)
    _write_layers(model, options)
    propagate(model.graph, options)
    roundings = [n for n in all_nodes(model.graph) if n.op_type in ROUNDING and n.domain == ""]
    outputs = float_outputs(model)
    inputs, ranges = input_ranges(model, roundings), output_ranges(model)
    products(model)
    dequantise_first(model)
    _drop_unused(model)  # a node that moved would still count as a user of the integers
    propagate(model.graph, options)
    note_products(model)
    notes = [f"output {printable(name)} is float: the values that the file's integers stand for" for name in outputs]
    notes += pairs(model, options.quantized)
    weights(model, options.quantized)
    _drop_unused(model)
    about = options.quantized, len(roundings), _bits(roundings), outputs, inputs, ranges
    rectified = tuple(v.name or "" for v in model.graph.outputs if v.name in ranges and least(v) >= 0)
    APPROXIMATED.set(model, Approximation(*about, rectified))
    left = [n for n in all_nodes(model.graph) if is_a(n, QUANTISED)]
    QUANTISED_NOTES.set(model, notes + _still(model) + ([_left(left)] if left else []))


def _write_layers(model: ir.Model, options: Options) -> None:
    known, problems = float_bodies(), Problems()
    nodes = [n for n in all_nodes(model.graph) if (n.domain, n.op_type) in known]
    if nodes:
        propagate(model.graph, options)
    for node in nodes:
        try:
            write(node, known[node.domain, node.op_type], model, options)
        except Refused as refused:
            problems.add(_problem(node, refused.what, refused.help))
        except NONSENSE:
            problems.add(_problem(node, "the inputs and attributes contradict each other", CHECK))
    problems.raise_if_any()


def _bits(roundings: list[ir.Node]) -> int:
    """Return the bits of the coarsest type that values are rounded to. Floats count by their mantissas."""
    dtypes = {info(node.outputs[0]).dtype or ir.DataType.UINT8 for node in roundings}
    return min((4 if d.is_floating_point() else int(d.bitwidth) for d in dtypes), default=8)


def _problem(node: ir.Node, what: str, help: str) -> Problem:
    domain = f"{node.domain}." if node.domain else ""
    return Problem(f"the node can't be written in floats: {what}", told(node), domain + node.op_type, help=help)


def _drop_unused(model: ir.Model) -> None:

    for node in reversed(all_nodes(model.graph)):
        if node.op_type != "Constant" and node.graph is not None and node.outputs:
            if not any(map(is_used, node.outputs)):
                node.graph.remove(node, safe=True)


def _still(model: ir.Model) -> list[str]:
    """Return a note for each reason why scales are not trained though `qat-learned` asks for it."""
    by_reason: dict[str, list[str]] = {}
    for value in stored_values(model.graph):
        if STILL.has(value) and value.uses():
            by_reason.setdefault(STILL.get(value), []).append(value.name or "")
    return [f"not trained, since {why}: {_listed(names)}" for why, names in by_reason.items()]


def _left(nodes: list[ir.Node]) -> str:
    how = "stays as it is" if len(nodes) == 1 else "stay as they are"
    names = _listed([n.name or n.op_type for n in nodes])
    return f"{counted(len(nodes), 'quantised node')} {how}, between integers ({names}): no gradient passes there"


def _listed(names: list[str]) -> str:
    return ", ".join([*map(printable, names[:MAX_NAMES_SHOWN]), *(["..."] if names[MAX_NAMES_SHOWN:] else [])])
