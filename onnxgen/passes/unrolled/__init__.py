"""Recurrent layers that an exporter unrolled step by step become RNN, GRU and LSTM nodes again.

torch's dynamo exporter writes a plain RNN as one cell for each step. A chain of cells over all steps of a sequence is
the layer, whose outputs are the states of all steps and the last ones. `passes.recurrent` then finds the module that
the layers belong to. A chain that differs from torch's layer in anything stays as it is.

Constant folding stores the same weight again for every step, and the first step's product with a state of zeros, which
is the bias. The model's `COPIES` lists such tensors, so that they are written back with the weight or bias.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import COPIES
from onnxgen.options import Options
from onnxgen.passes.unrolled.cells import Cell, cell_of
from onnxgen.passes.unrolled.chains import Linker
from onnxgen.passes.unrolled.forms import Forms
from onnxgen.passes.unrolled.layers import write_layers
from onnxgen.passes.unrolled.single import write_cells
from onnxgen.passes.unrolled.writing import Moved
from onnxgen.weights.stored import Views

ROOTS = {"Tanh", "Relu", "Mul", "Add"}


def unrolled(model: ir.Model, options: Options) -> None:
    """Rewrite every chain of cells that is a layer."""
    views = Views(model, options)
    for graph in model.graphs():
        linker = Linker(views)
        moved: Moved = {}
        cells = _cells(graph, Forms(views))
        chains = linker.chains(cells)
        written = write_layers(chains, views, moved)
        steps = {cell for chain in written for cell in chain.cells}
        write_cells([cell for cell in cells if cell not in steps], views, moved)
        COPIES.set(model, [*COPIES.get(model), *(copy for chain in written for copy in chain.copies)])
        if written:
            graph.sort()  # users of the first layers' states may be before the last layers


def _cells(graph: ir.Graph, forms: Forms) -> list[Cell]:
    nodes = (node for node in graph if node.domain == "" and node.op_type in ROOTS)
    return [cell for node in nodes if (cell := cell_of(node.outputs[0], forms)) is not None]
