"""A recurrent layer of one step becomes torch's cell, if its tensors are called as a cell's: `onnxgen.LSTMCell(...)`.

torch's legacy exporter writes `nn.LSTMCell` as an LSTM over a sequence of one step: it puts an axis before the input
and the states, and takes it off the results.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxgen.passes.exporters import CELL
from onnxgen.passes.match import uniform
from onnxgen.passes.recurrent_stack import RecurrentLayer
from onnxgen.passes.rewrite import drop, own
from onnxgen.passes.steps import input_at, insert, replace_uses
from onnxgen.passes.unrolled.forms import Rows, bare
from onnxgen.passes.unrolled.results import same
from onnxgen.passes.unrolled.writing import TORCH_ORDER, joined_rows, squeezed, unsqueezed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import Info, info, set_info


def is_cell(layer: RecurrentLayer) -> bool:
    """True if a layer runs one step, and its tensors are called as those of one cell of torch."""
    x, batched = info(layer.node.inputs[0]).shape or (), layer.node.attributes.get_int("layout", 0)
    paths = {path for name in (n for s in layer.sources for n in s.names) if (path := param_path(name)) is not None}
    one = len({path[:-1] for path in paths}) == 1 and all(CELL.match(path[-1]) for path in paths)
    return one and x[:1] == (1,) and layer.directions == 1 and not batched and layer.node.op_type in TORCH_ORDER


def write_cell(layer: RecurrentLayer) -> None:
    """Replace the node. What takes its results without the axis of the steps takes the cell's own."""
    node, kind = layer.node, layer.node.op_type
    states = [input_at(node, i) for i in range(5, 5 + len(node_states(kind)))]
    given = [node.inputs[0], *(None if v is None or uniform(v) == 0 else v for v in states)]
    inputs = [None if v is None else _of_one_step(node, v) for v in given]
    new = own(f"{kind}Cell", [*inputs, *_weights(layer)], len(states), **({"relu": 1} if layer.relu else {}))
    new.name = node.name
    shape = (*(info(inputs[0]).shape or ())[:1], layer.hidden)
    insert(node, new, scope_of=node)
    for k, state in enumerate(new.outputs):
        set_info(state, Info(info(node.inputs[0]).dtype, shape))
        state.name = f"{node.outputs[0].name}.{k}"
    for old, state in [*zip(node.outputs[1:], new.outputs), (node.outputs[0], new.outputs[0])]:
        _hand_over(node, old, state)
    drop(node)


def node_states(kind: str) -> str:
    return "hc" if kind.startswith("L") else "h"


def _of_one_step(before: ir.Node, value: ir.Value) -> ir.Value:
    """Return a value without the first axis."""
    shape, plain = (info(value).shape or ())[1:], bare(value)
    return plain if plain is not None and info(plain).shape == shape else squeezed(before, value, 0)


def _hand_over(before: ir.Node, old: ir.Value, state: ir.Value) -> None:
    """Let everything that takes a result of the node take the state, with as many axes as it expects."""
    shape = info(state).shape
    for value in [v for v in same(old) if info(v).shape == shape and v is not old]:
        producer = value.producer()
        replace_uses(value, state)
        if producer is not None:
            drop(producer)
    if old.uses() or old.is_graph_output():
        wide = state
        for _ in range((info(old).rank or 3) - len(shape or ())):
            wide = unsqueezed(before, wide)
        replace_uses(old, wide)


def _weights(layer: RecurrentLayer) -> Sequence[ir.Value]:
    """Return the matrices and biases of input and state, in torch's order."""
    node, order, size = layer.node, TORCH_ORDER[layer.node.op_type], layer.hidden
    flat = [squeezed(node, v, 0) for v in node.inputs[1:4] if v is not None]
    starts = [(flat[0], 0), (flat[1], 0), *((flat[2], k * len(order) * size) for k in (0, 1) if len(flat) > 2)]
    return [
        joined_rows(node, [Rows(value, False, start + g * size, start + (g + 1) * size) for g in order])
        for value, start in starts
    ]
