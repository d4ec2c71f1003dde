"""Recurrent layers that an exporter unrolled step by step become RNN, GRU and LSTM nodes again, and cells one node.

torch's dynamo exporter writes a plain RNN as one cell for each step. A chain of cells over all steps of a sequence is
the layer, whose outputs are the states of all steps and the last ones. `passes.recurrent` then finds the module that
the layers belong to. Other cells become torch's RNNCell, GRUCell and LSTMCell. What differs from torch's layer or cell
in anything stays as it is, and so do all other steps with its weights.

Constant folding stores the same weight again for every step, and the first step's product with a state of zeros, which
is the bias. `COPIES` notes it of such tensors, so that they are written back with the weight or bias.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxgen.graph.annotations import UNROLLED
from onnxgen.graph.nodes import all_graphs
from onnxgen.options import Options
from onnxgen.passes.unrolled.cells import Cell, Forms, cell_of
from onnxgen.passes.unrolled.chains import Chain, Copies, Linker
from onnxgen.passes.unrolled.writing import Layers, Moved, single_cells, weights_of, write_cell
from onnxgen.weights.stored import Copied, Views, note_copy, view_of

ROOTS = {"Tanh", "Relu", "Mul", "Add"}


def unrolled(model: ir.Model, options: Options) -> None:
    """Rewrite every chain of cells that is a layer, and every other cell."""
    views = Views(model, options)
    for graph in all_graphs(model.graph):
        cells = _cells(graph, Forms(views))
        layers = Layers(Linker(views).chains(cells) if cells else (), views)
        written = _write(cells, layers, views)
        UNROLLED.set(model, UNROLLED.get(model) | {len(chain.cells) for chain in written})
        if written:
            graph.sort()  # users of the first layers' states may be before the last layers


def _write(cells: list[Cell], layers: Layers, views: Views) -> list[Chain]:
    """Write the layers, and the cells that belong to none. Returns the layers that were written."""
    moved = Moved()
    steps = {cell: tuple(chain.cells) for chain in layers.chains for cell in chain.cells}
    single = single_cells([cell for cell in cells if cell not in steps], views)
    kept = _with_all_users(steps | {cell: (cell,) for cell in single})
    written = layers.write([chain for chain in layers.chains if chain.last in kept], moved)
    copies = [copy for chain in written for copy in chain.copies]
    for cell in [cell for cell in single if cell in kept]:
        write_cell(cell, moved)
        copies += single[cell]
    _note(copies)
    return written


def _cells(graph: ir.Graph, forms: Forms) -> list[Cell]:
    nodes = (node for node in graph if node.domain == "" and node.op_type in ROOTS)
    return [cell for node in nodes if (cell := cell_of(node.outputs[0], forms)) is not None]


def _note(copies: Copies) -> None:
    by_value: dict[ir.Value, list[Copied]] = {}
    for value, copied in copies:
        by_value.setdefault(value, []).append(copied)
    for value, notes in by_value.items():
        note_copy(value, notes)


def _with_all_users(groups: Mapping[Cell, tuple[Cell, ...]]) -> set[Cell]:
    """Return the cells whose weights nothing but such cells uses. A group of cells is kept or left as a whole.

    Otherwise the weights would be those of the module and of what is written out, and biases would be trained apart.
    """
    kept = set(groups)
    while True:
        inside = set[ir.Node]().union(*(cell.nodes for cell in kept))
        alone: dict[ir.Value, bool] = {}
        weights = {cell: {rows.value for group in weights_of(cell) for rows in group} for cell in kept}
        wrong = {cell for cell in kept if not all(_is_alone(value, inside, alone) for value in weights[cell])}
        if not wrong:
            return kept
        kept -= {cell for each in wrong for cell in groups[each]}


def _is_alone(value: ir.Value, inside: set[ir.Node], known: dict[ir.Value, bool]) -> bool:
    """True if only nodes inside use a stored tensor, perhaps through views."""
    while (node := value.producer()) is not None and view_of(node) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    if value not in known:
        pending, users = [value], set[ir.Node]()
        while pending:
            for use in pending.pop().uses():
                is_view = use.idx == 0 and view_of(use.node) is not None
                pending += use.node.outputs if is_view else ()
                users |= set() if is_view else {use.node}
        known[value] = users <= inside and not value.is_graph_output()
    return known[value]
