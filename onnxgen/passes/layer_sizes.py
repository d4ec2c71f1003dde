"""The sizes of a layer's tensors: onnxruntime refuses wrong ones, and torch's layers can't hold them.

This is asked of the file's own nodes, before any pass moves their tensors. What is wrong later is a bug of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.errors import WRITER, OnnxgenError, Problem
from onnxgen.graph.nodes import opset_of, told
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

Sizes = tuple[Dim | None, ...]  # None: any size
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# inputs with one number for each channel
VECTORS = {
    **dict.fromkeys(("Conv", "ConvTranspose"), {2: "B"}),
    "BatchNormalization": {1: "scale", 2: "B", 3: "mean", 4: "var"},
    "InstanceNormalization": {1: "scale", 2: "B"},
    "GroupNormalization": {1: "scale", 2: "bias"},
}


def layer_sizes(model: ir.Model, options: Options) -> None:
    """Check the tensors of layers. Raises `OnnxgenError` for one whose rank or size its operator does not allow."""
    for node in standard_nodes(model, *VECTORS):
        wanted: dict[int, tuple[str, Sizes]] = {i: (name, (None,)) for i, name in VECTORS[node.op_type].items()}
        _hold(model, node, wanted, [None if stored(v) is None else _shape(v) for v in node.inputs])
    for node in standard_nodes(model, *GATES):
        shapes = [_shape(value) for value in node.inputs]
        _hold(model, node, dict(_recurrent(node, shapes)), shapes)


def _shape(value: ir.Value | None) -> Sizes | None:
    tensor = stored(value)
    return info(value).shape if tensor is None else tuple(tensor.shape.numpy())


def _recurrent(node: ir.Node, shapes: list[Sizes | None]) -> Iterator[tuple[int, tuple[str, Sizes]]]:
    """Yield the sizes of weights, recurrent weights, biases, states and peepholes, by the index of the input."""
    x, r = shapes[0], shapes[2] if len(shapes) > 2 else None
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    hidden = node.attributes.get_int("hidden_size", 0) or (r[-1] if r else None)
    if isinstance(hidden, int):
        rows = GATES[node.op_type] * hidden
        state: Sizes = (directions, None, hidden)
        state = (None, directions, hidden) if node.attributes.get_int("layout", 0) else state
        yield 1, ("W", (directions, rows, x[-1] if x else None))
        yield 2, ("R", (directions, rows, hidden))
        yield 3, ("B", (directions, 2 * rows))
        yield from ((i, (name, state)) for i, name in ((5, "initial_h"), (6, "initial_c")))
        yield 7, ("P", (directions, 3 * hidden))


def _hold(model: ir.Model, node: ir.Node, wanted: dict[int, tuple[str, Sizes]], shapes: list[Sizes | None]) -> None:
    for index, (name, sizes) in wanted.items():
        found = shapes[index] if index < len(shapes) else None
        is_batch = index in (5, 6)  # which may have no sequence
        if found is None or (_fits(found, sizes) and (is_batch or 0 not in found)):
            continue
        told_sizes = ", ".join("any size" if size is None else str(size) for size in sizes)
        what = f"{name} has the shape {list(found)}, and the operator takes [{told_sizes}]"
        raise OnnxgenError(Problem(what, told(node), node.op_type, opset_of(node, model), WRITER))


def _fits(found: Sizes, wanted: Sizes) -> bool:
    pairs = [(a, b) for a, b in zip(found, wanted) if isinstance(a, int) and isinstance(b, int)]
    return len(found) == len(wanted) and all(a == b for a, b in pairs)
